"""What all commands share: their groups, their options, and how things look on a terminal."""

"""From the slow to the fast setting, one treatment after the other."""

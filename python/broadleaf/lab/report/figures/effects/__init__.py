"""What one factor does, and two together."""

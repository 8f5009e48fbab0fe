"""Studies that choose their own next runs and stop when every question is decided."""

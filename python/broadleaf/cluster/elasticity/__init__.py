"""Clusters that grow and shrink: what is wanted, what it takes, and who does it."""

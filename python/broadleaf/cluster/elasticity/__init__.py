"""Clusters that grow and shrink: the wanted size, the steps to get there, and who takes them."""

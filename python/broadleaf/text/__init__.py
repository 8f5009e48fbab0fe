"""How figures and names are written for people."""

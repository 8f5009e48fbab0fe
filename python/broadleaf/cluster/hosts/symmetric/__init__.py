"""`broadleaf run`: the same command on every host of an allocation makes a cluster of them, for a program on one of the
hosts."""

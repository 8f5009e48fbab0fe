"""`python -m broadleaf.bench`: the same as `broadleaf bench`."""

import sys

from broadleaf.cli import main

main(["bench", *sys.argv[1:]])

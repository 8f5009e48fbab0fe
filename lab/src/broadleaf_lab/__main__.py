"""`python -m broadleaf_lab`: the command line, for when its script is not on the path."""

import sys

from broadleaf_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())

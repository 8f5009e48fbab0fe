"""`python -m broadleaf`: the command line, for when its script is not on the path."""

import sys

from broadleaf.cli import main

if __name__ == "__main__":
    sys.exit(main())

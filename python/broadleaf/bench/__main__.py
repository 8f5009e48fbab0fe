"""`python -m broadleaf.bench`: the same as `broadleaf bench`."""

import sys

from broadleaf.extensions import extension

extension("command")(["bench", *sys.argv[1:]])

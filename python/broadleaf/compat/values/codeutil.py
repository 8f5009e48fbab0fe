"""Lets code objects be pickled, as soon as this is imported."""

from __future__ import annotations

import copyreg
import marshal
from collections.abc import Callable
from types import CodeType


def code_ctor(marshalled: bytes) -> CodeType:
    """The code object that `reduce_code` described; the Python must be of the same version."""
    code: CodeType = marshal.loads(marshalled)
    return code


def reduce_code(code: CodeType) -> tuple[Callable[[bytes], CodeType], tuple[bytes]]:
    """How a code object is pickled."""
    return code_ctor, (marshal.dumps(code),)


copyreg.pickle(CodeType, reduce_code)

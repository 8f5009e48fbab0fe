"""Exceptions on their way back from engines."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any

from broadleaf.errors import RemoteError
from broadleaf.serialize import PROTOCOL

# Bounds of what is kept of an exception's text.
_TRACEBACK_LINES = 400
_EVALUE_CHARACTERS = 20_000
_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def dump_error(error: BaseException, engine_id: int = -1, engine_uuid: str = "", method: str = "apply") -> bytes:
    """The record of an exception: type, text and traceback, and the exception itself where it can be pickled."""
    return pickle.dumps(error_record(error, engine_id, engine_uuid, method), PROTOCOL)


def error_record(error: BaseException, engine_id: int, engine_uuid: str, method: str) -> tuple[Any, ...]:
    """What `dump_error` pickles. Never raises."""
    try:
        evalue = str(error)[:_EVALUE_CHARACTERS]
    except Exception as worse:
        evalue = f"<its text cannot be had: {type(worse).__name__}>"
    info = {"engine_id": engine_id, "engine_uuid": engine_uuid, "method": method}
    return type(error).__name__, evalue, _traceback_text(error), info, _pickled(error)


def _traceback_text(error: BaseException) -> str:
    tb = error.__traceback__
    # The frames between the engine's loop and the user's code say nothing to the user.
    while tb is not None and tb.tb_next is not None and tb.tb_frame.f_code.co_filename.startswith(_PACKAGE_DIR):
        tb = tb.tb_next
    try:
        lines = traceback.format_exception(type(error), error, tb)
    except Exception as worse:
        return f"{type(error).__name__}: (no traceback: {type(worse).__name__}: {worse})"
    lines = "".join(lines).splitlines()
    if len(lines) > _TRACEBACK_LINES:
        half = _TRACEBACK_LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]
    return "\n".join(lines)


def _pickled(error: BaseException) -> bytes | None:
    from broadleaf.serialize.pickle import dumps

    try:
        data, buffers = dumps(error)
        if buffers:
            return None
        # An exception whose __init__ does not take its own args pickles well and fails to load.
        pickle.loads(data)
    except Exception:
        return None
    return data


def load_error(data: bytes) -> RemoteError:
    """The exception of what `dump_error` gave, the original as its `__cause__` where that can be loaded."""
    try:
        record = pickle.loads(data)
    except Exception as error:
        return RemoteError("UnreadableError", f"the engine's error record cannot be read: {error}")
    return remote_error(record)


def remote_error(record: tuple[Any, ...]) -> RemoteError:
    """The exception of an error record."""
    ename, evalue, text, info, pickled = record
    remote = RemoteError(ename, evalue, text, info)
    if pickled is not None:
        try:
            remote.__cause__ = pickle.loads(pickled)
        except Exception:
            remote.__cause__ = None
        remote.__suppress_context__ = True
    return remote


class Failed:
    """Stands in a chunk's list of results for an item whose call raised."""

    __slots__ = ("record",)

    def __init__(self, record: tuple[Any, ...]) -> None:
        self.record = record

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """The stand-in for `error`."""
        return cls(error_record(error, -1, "", "map"))

    def exception(self, engine_id: int) -> RemoteError:
        """The exception it stands for."""
        remote = remote_error(self.record)
        remote.engine_info["engine_id"] = engine_id
        return remote

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed, (self.record,)

"""Which buffers of a pickle travel out of band."""

from __future__ import annotations

import pickle
from collections.abc import Callable

# Below this size a buffer costs more as a separate object than as a copy.
INBAND_BUFFER_BYTES = 4096


def keep_out_of_band(
    buffers: list[pickle.PickleBuffer], min_bytes: int = INBAND_BUFFER_BYTES
) -> Callable[[pickle.PickleBuffer], bool]:
    """A `buffer_callback` that appends buffers from `min_bytes` on to `buffers`; smaller ones stay in the pickle."""

    def on_buffer(buffer: pickle.PickleBuffer) -> bool:
        if memoryview(buffer).nbytes < min_bytes:
            return True
        buffers.append(buffer)
        return False

    return on_buffer

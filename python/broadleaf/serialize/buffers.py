"""Which buffers of a pickle travel out of band."""

from __future__ import annotations

import pickle
from collections.abc import Callable

# Below this a buffer costs more as a separate object than as a copy.
INBAND_BUFFER_BYTES = 4096


def keep_out_of_band(buffers: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    """A `buffer_callback` that appends the large buffers to `buffers` and leaves the small ones in the pickle."""

    def on_buffer(buffer: pickle.PickleBuffer) -> bool:
        if memoryview(buffer).nbytes < INBAND_BUFFER_BYTES:
            return True
        buffers.append(buffer)
        return False

    return on_buffer

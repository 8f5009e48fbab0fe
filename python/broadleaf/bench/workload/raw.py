"""The machine's own limits: what any system is measured against. Served like a peer; needs no workers."""

import ctypes
import mmap
import os
import pickle
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

from . import tasks
from .adapter import Adapter, Carry, returned
from .measure import Values, round_trips

THERE_AND_BACK = ("apply", "map")
MADV_HUGEPAGE, MADV_NOHUGEPAGE = 14, 15
libc: ctypes.CDLL = ctypes.CDLL(None)
libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
clock: Callable[[], float] = time.perf_counter


def address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def socket_pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for s in (near, far):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def round_trip(peer: Adapter, kind: str, calls: int, warmup: int) -> Values:
    """One byte to another process and back, by blocking calls; the scheduler places the processes."""
    near, far = socket_pair(kind)
    child = os.fork()
    if child == 0:
        near.close()
        while message := far.recv(1):
            far.send(message)
        os._exit(0)
    far.close()

    def ping() -> None:
        near.send(b"x")
        near.recv(1)

    try:
        for _ in range(warmup):
            ping()
        return round_trips(ping, calls)
    finally:
        near.close()
        os.waitpid(child, 0)


def filled(size_bytes: int) -> mmap.mmap:
    """Private memory that has been written once."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ctypes.memset(address(memory), 7, size_bytes)
    return memory


def memcpy(peer: Adapter, size_bytes: int, target: str) -> Values:
    """One copy of this many bytes: into memory that was just written, or that never was."""
    source = filled(size_bytes)
    if target == "warm":
        into = filled(size_bytes)
        libc.memcpy(address(into), address(source), size_bytes)
    else:
        into = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        into.madvise(MADV_HUGEPAGE if target == "first touch, huge pages" else MADV_NOHUGEPAGE)
    begin = clock()
    libc.memcpy(address(into), address(source), size_bytes)
    seconds = clock() - begin
    return {"memcpy": size_bytes / seconds / 1e9, "copy_time": seconds * 1e3}


def memcpy_many(peer: Adapter, size_bytes: int, n: int) -> Values:
    """n different warm blocks, each copied into a warm block: the minimum cost of sending n arrays."""
    sources = [filled(size_bytes) for _ in range(n)]
    targets = [filled(size_bytes) for _ in range(n)]
    pairs = [(address(t), address(s)) for s, t in zip(sources, targets, strict=True)]
    begin = clock()
    for into, out_of in pairs:
        libc.memcpy(into, out_of, size_bytes)
    seconds = clock() - begin
    return {"memcpy": size_bytes * n / seconds / 1e9, "copy_time": seconds * 1e3}


def stream(peer: Adapter, kind: str, size_bytes: int) -> Values:
    """One large message to another process, which answers with one byte when it has everything."""
    near, far = socket_pair(kind)
    child = os.fork()
    if child == 0:
        near.close()
        into = memoryview(bytearray(size_bytes))
        for _ in range(2):
            got = 0
            while got < size_bytes:
                got += far.recv_into(into[got:])
            far.send(b"k")
        os._exit(0)
    far.close()
    data = bytes(size_bytes)
    try:
        for _ in range(2):
            begin = clock()
            near.sendall(data)
            near.recv(1)
            seconds = clock() - begin
    finally:
        near.close()
        os.waitpid(child, 0)
    return {"bandwidth": size_bytes / seconds / 1e9}


def plain_sleep(peer: Adapter, ms: float, n: int) -> Values:
    """How long a sleep of this length takes in one plain process: the mean of n calls of the nap task."""
    begin = clock()
    for _ in range(n):
        tasks.nap(ms / 1e3)
    return {"sleep": (clock() - begin) / n * 1e3}


def pickling(peer: Adapter, what: str, n: int) -> Values:
    """Time of one pickling step, the mean of n."""
    call = (tasks.echo, (10,), {"a": 1})
    body = pickle.dumps(call, 5)
    function = lambda: None  # noqa: E731
    by_value = cloudpickle.dumps(function)
    array = bytearray(1_000_000)
    steps: dict[str, Callable[[], Any]] = {
        "pickle.dumps of a call": lambda: pickle.dumps(call, 5),
        "pickle.loads of a call": lambda: pickle.loads(body),
        "cloudpickle.dumps of a lambda": lambda: cloudpickle.dumps(function),
        "pickle.loads of that lambda": lambda: pickle.loads(by_value),
        "pickle 5 of 1 MB, in band": lambda: pickle.dumps(pickle.PickleBuffer(array), 5),
        "pickle 5 of 1 MB, out of band": lambda: pickle.dumps(
            pickle.PickleBuffer(array), 5, buffer_callback=lambda b: None
        ),
    }
    step = steps[what]
    begin = clock()
    for _ in range(n):
        step()
    return {"time": (clock() - begin) / n * 1e6}


def processes(peer: Adapter, what: str) -> Values:
    """A fork with its exit, or the start and end of an interpreter, in us."""
    begin = clock()
    if what == "fork, exit, wait":
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    else:
        subprocess.run([sys.executable, *what.split()[1:]], check=True)
    return {"time": (clock() - begin) * 1e6}


def pickled_and_loaded(value: Any) -> Any:
    """What the pickler itself does to a value, without copying buffers such as those of arrays."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pickle.loads(body, buffers=buffers)


class Peer(Adapter):
    measures: ClassVar[dict[str, Callable[..., Values]]] = {
        "raw_rtt": round_trip,
        "raw_memcpy": memcpy,
        "raw_memcpy_many": memcpy_many,
        "raw_stream": stream,
        "raw_sleep": plain_sleep,
        "raw_pickle": pickling,
        "raw_process": processes,
    }

    def version(self) -> str:
        return f"CPython {platform.python_version()}, Linux {platform.release()}"

    def start(self, workers: int, config: str) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def carry(self, route: str) -> dict[str, Carry]:
        """Through the pickler alone."""
        times = 2 if route in THERE_AND_BACK else 1

        def go(values: list[Any]) -> list[Any]:
            for _ in range(times):
                values = [pickled_and_loaded(x) for x in values]
            return values

        return {"pickler": Carry(go, returned)}

"""An engine that is a rank of an MPI world, from its start to the end of the world."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from typing import Any, NoReturn

from broadleaf import _native
from broadleaf.engine import environment, process
from broadleaf.engine.guest_link import GuestLink
from broadleaf.engine.main import run_engine
from broadleaf.engine.process import Capture
from broadleaf.serialize.search_path import extend_search_path

# How long the other ranks have to reach MPI.Finalize, which waits for them.
_FINALIZE_S = 10


def run_rank(
    link: GuestLink, mpi: Any, world: str, log_path: str, share_of_cores: int, start_timeout_s: float
) -> NoReturn:
    """Runs this process as an engine until it is told to stop, and then leaves the world with the others.

    `link` is a connection to the host's fork server that has been welcomed, `mpi` is the module `mpi4py.MPI`. `world`
    is the world's name, or '' for a name that rank 0 generates. mpiexec's output is in `log_path`, if known.
    `share_of_cores` is the number of cores for this rank.
    """
    comm = mpi.COMM_WORLD
    if not world:  # ranks that wait for others use a core each
        world = comm.bcast(f"world-{os.urandom(4).hex()}", root=0)
    join = {"world": world, "rank": comm.Get_rank(), "size": comm.Get_size(), "log": log_path}
    try:
        os.setpgid(0, 0)
    except PermissionError:
        pass  # it leads a session
    try:
        link.send({"join": join})
        setup, capture = _receive_setup(link, start_timeout_s)
        code = _serve(setup, capture, share_of_cores)
        link.send({"leaves": True})
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(1)
        os._exit(1)
    # The other ranks may be lost or busy, and then never arrive.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_FINALIZE_S)
    mpi.Finalize()
    # Not `os._exit`: MPICH says goodbye to its process manager in a C exit handler. Threads that tasks left running in
    # Python do not keep the process alive.
    ctypes.PyDLL(None).exit(code)
    raise AssertionError("invariant: exit does not return")


def _receive_setup(link: GuestLink, timeout_s: float) -> tuple[dict[str, Any], Capture | None]:
    try:
        setup, descriptors = link.receive(timeout_s)
    except TimeoutError:
        raise TimeoutError(f"the cluster did not assign an engine slot to this rank within {timeout_s:g} s") from None
    told = setup["capture"]
    if told is None:
        return setup, None
    names = ("stdout_read", "stdout_write", "stderr_read", "stderr_write", "recent")
    return setup, Capture(**told | dict(zip(names, descriptors, strict=True)))


def _serve(setup: dict[str, Any], capture: Capture | None, share_of_cores: int) -> int:
    signal.set_wakeup_fd(-1)
    extend_search_path(setup["sys_path"])
    environment.work_in(setup["directory"])
    connection = _native.hold_key(setup.pop("connection"))
    os.environ["BROADLEAF_CLUSTER_ID"] = json.loads(connection)["cluster_id"]
    options = setup["options"]
    environment.prepare(options["threads_per_engine"], share_of_cores, dict(os.environ))
    # What is written before the engine reads its pipes goes to the log.
    process.redirect_output(process.open_log(setup["log_path"]), None)
    environment.preload(options["preload"])
    gc.freeze()
    gc.enable()
    process.redirect_output(os.dup(1), capture)
    try:
        return run_engine(connection, setup["engine_id"], options, capture)
    except _native.LinkClosed:
        return 0  # the node has gone: the cluster has stopped

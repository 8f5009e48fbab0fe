"""One array for all engines of a host: through a file that all of them map, and by a plain push, which does that by
itself.

The program of IPython Parallel's page on broadcasting with memmap, corrected. In the published version, the path of the
file is set only on the one engine of each host that wrote it, but looked up on all engines, so all others fail; and
`np.memmap` without a dtype maps the header and bytes of the file as numbers. Here every engine is told the path of its
host's file, and `np.load` maps what follows the header. Run it with the number of engines, or with none for a running
cluster of the profile "mpi".
"""

import socket
import sys
import time

import broadleaf as ipp
import numpy as np


@ipp.interactive
def array_to_file(A, name):
    """Writes an array to a temporary file, and returns its path."""
    import tempfile

    import numpy as np

    with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
        np.save(file, A)
        data_path = file.name
    if name:
        globals()[name] = data_path
    return data_path


@ipp.interactive
def load_memmap(name, paths, mode="c"):
    """Loads this host's file into the namespace as a mapped array, whose pages the engine copies when it writes."""
    import socket

    import numpy as np

    globals()[name] = np.load(paths[socket.gethostname()], mmap_mode=mode)


def bcast_memmap(data, name, client, host_engines):
    """Broadcasts an array: sends it to one engine per host, writes it to a file there, and maps it on all engines of
    the host.

    Returns the result of the last step, and the path of the file on each host; the caller removes the files.
    """
    one_per_host = client.broadcast_view([engines[0] for engines in host_engines.values()], coalescing=True)
    sent = one_per_host.apply_async(array_to_file, data, name=f"_bcast_array_{name}")
    # The engines of a host wait for its file, whichever of them writes it.
    paths = dict(zip(host_engines, sent.get(), strict=True))
    return client.broadcast_view(coalescing=True).apply_async(load_memmap, name, paths), paths


@ipp.interactive
def remove(paths):
    """Removes this host's file; mapped arrays stay."""
    import os
    import socket

    os.unlink(paths[socket.gethostname()])


def compare(rc: ipp.Client) -> None:
    """Times the empty call, the file, and the push; checks what arrived."""
    eall = rc.broadcast_view(coalescing=True)
    engine_hosts = eall.apply_async(socket.gethostname).get_dict()
    host_engines: dict[str, list[int]] = {}
    for eid, host in engine_hosts.items():
        host_engines.setdefault(host, []).append(eid)
    print({host: len(engines) for host, engines in host_engines.items()})

    begin = time.perf_counter()
    eall.apply_sync(lambda: None)
    print(f"empty call: {(time.perf_counter() - begin) * 1e3:.2f} ms")

    data = np.random.random((512, 512))
    norm = np.linalg.norm(data)
    eall.execute("import numpy as np", block=True)

    begin = time.perf_counter()
    result, paths = bcast_memmap(data, "data", rc, host_engines)
    result.wait_interactive()
    print(f"by a file on each host: {(time.perf_counter() - begin) * 1e3:.2f} ms")
    assert np.allclose(eall.apply_sync(np.linalg.norm, ipp.Reference("data")), norm)
    rc.broadcast_view([engines[0] for engines in host_engines.values()]).apply_sync(remove, paths)

    begin = time.perf_counter()
    result = rc[:].push({"data": data}, block=False)
    result.wait_interactive()
    print(f"by push: {(time.perf_counter() - begin) * 1e3:.2f} ms")
    assert np.allclose(eall.apply_sync(np.linalg.norm, ipp.Reference("data")), norm)


def main() -> None:
    if len(sys.argv) > 1:
        with ipp.Cluster(n=int(sys.argv[1]), profile="mpi") as rc:
            compare(rc)
    else:
        with ipp.Client(profile="mpi") as rc:
            compare(rc)


if __name__ == "__main__":
    main()

"""Connections that take up room and say nothing, against clients that want in.

Run as a script it counts how many clients get in meanwhile, and how long they take:
``python tests/flood.py --seconds 60 --connects 1000``.
"""

import argparse
import json
import os
import selectors
import socket
import threading
import time
from pathlib import Path

import broadleaf as ipp

# A TLS record that says that a ClientHello of 16 KiB follows, and its first bytes.
HALF_A_HANDSHAKE = bytes.fromhex("16030140000100") + bytes(512)


class Flood:
    """Keeps `silent` connections open that say nothing and `half` that stop in a handshake; reopens them."""

    def __init__(self, address, silent, half):
        self._address = address
        self._opens = {"silent": silent, "half": half}
        self._stop = threading.Event()
        self._full = threading.Event()
        self.opened = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        assert self._full.wait(30), "the flood's connections did not all open"
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        held = dict.fromkeys(self._opens, 0)
        with selectors.DefaultSelector() as selector:
            try:
                while not self._stop.is_set():
                    for kind, wanted in self._opens.items():
                        while held[kind] < wanted:
                            self._open(selector, kind)
                            held[kind] += 1
                    self._full.set()
                    for key, _ in selector.select(0.02):
                        if self._is_closed(key.fileobj):
                            selector.unregister(key.fileobj)
                            key.fileobj.close()
                            held[key.data] -= 1
            finally:
                for key in list(selector.get_map().values()):
                    key.fileobj.close()

    def _open(self, selector, kind):
        connection = socket.create_connection(self._address)
        if kind == "half":
            connection.send(HALF_A_HANDSHAKE)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, kind)
        self.opened += 1

    @staticmethod
    def _is_closed(connection):
        try:
            return connection.recv(4096) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def over_tcp(connection_file):
    """The connection file's content for clients on other hosts."""
    return json.loads(Path(connection_file).read_text()) | {"unix_path": None}


def times_to_connect(cluster, connects, period_s=0.0):
    """Seconds that each of this many clients takes to connect and see the engines, local and remote ones in turn."""
    ways = [cluster.connection_file, over_tcp(cluster.connection_file)]
    times = []
    start = time.monotonic()
    for n in range(connects):
        time.sleep(max(0.0, start + n * period_s - time.monotonic()))
        begin = time.monotonic()
        with ipp.Client(ways[n % 2]) as client:
            assert len(client.ids) == cluster.n
        times.append(time.monotonic() - begin)
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connects", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=300, help="of each kind")
    arguments = parser.parse_args()
    with ipp.Cluster(n=2, listen="127.0.0.1:0") as rc:
        cluster = rc.cluster
        tcp = over_tcp(cluster.connection_file)["tcp"]
        with Flood((tcp["host"], tcp["port"]), arguments.connections, arguments.connections) as flood:
            times = times_to_connect(cluster, arguments.connects, arguments.seconds / arguments.connects)
            waiting = cluster.status_sync()["node"]["waiting_connections"]
        print(
            f"{len(times)} of {arguments.connects} clients got in; flood opened {flood.opened} connections; {waiting}"
        )
        for way, taken in (("unix", times[::2]), ("tcp", times[1::2])):
            taken = sorted(taken)
            print(f"{way}: median {taken[len(taken) // 2] * 1e3:.1f} ms, slowest {taken[-1] * 1e3:.1f} ms")
        assert rc[:].apply_sync(os.getpid)


if __name__ == "__main__":
    main()

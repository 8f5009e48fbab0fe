"""What other systems lose by faults of `links.py`, beside Broadleaf.

`links_of_peers.py [--peer dask] [--fault cut-9] [--rounds 1] [--to FILE]`: two hosts with two workers each, each worker
with a variable or an actor, and 1,000 tasks of 20 ms that leave a line each. One host's network is cut, or all its
processes are stopped, for a while. Every system runs with its defaults. Needs the environments of `make test-sites`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from threading import Timer

sys.path.insert(0, str(Path(__file__).parents[1]))

from bed.network import Host, HostedCluster, Network, wait_until

CHECKOUT = Path(__file__).parents[2]
TASKS = 1000
# What has not ended this long after the network's return is taken for lost.
PATIENCE_S = 120
# A program that has told nothing for so long stands still.
STANDS_STILL_S = 400

_COMMON = """
import json, sys, time

where, log, lost_host, n_tasks, patience_s = sys.argv[1:4] + [int(n) for n in sys.argv[4:6]]

def work(log, i):
    import os, time
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{i}\\n".encode())
    os.close(descriptor)
    time.sleep(0.02)
    return i * i

def until(is_so, seconds):
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)

def tell(**what):
    print(json.dumps(what), flush=True)

def tried(function, *arguments):
    try:
        return function(*arguments)
    except Exception:
        return None

def main():
    keep()
    ended = submit()
    until(lambda: sum(map(is_ended, ended)) > 50, 60)
    tell(began=True)
    sys.stdin.readline()
    back = time.monotonic()
    answer = tried(first_there)
    served_s = time.monotonic() - back if answer is not None else None
    until(lambda: all(map(is_ended, ended)), back + patience_s - time.monotonic())
    values = [tried(value_of, one) if is_ended(one) else "open" for one in ended]
    n_open, n_failed = values.count("open"), values.count(None)
    tell(ok=len(values) - n_open - n_failed, failed=n_failed, open=n_open, kept=tried(n_kept), served_s=served_s)
"""

_DASK = """
from distributed import Client
client = Client(where)
client.wait_for_workers(4)
there = [w for w in client.scheduler_info(n_workers=-1)["workers"] if lost_host in w]

def keep():
    def put(dask_worker):
        dask_worker.kept = 41
    client.run(put)

def n_kept():
    kept = client.run(lambda dask_worker: getattr(dask_worker, "kept", 0), on_error="return")
    return sum(value == 41 for value in kept.values())

def submit():
    return client.map(work, [log] * n_tasks, range(n_tasks), pure=False)

def first_there():
    return client.submit(int, workers=there[:1], pure=False).result(timeout=patience_s)

def is_ended(future):
    return future.done()

def value_of(future):
    return future.result(timeout=5)

main()
"""

# What programs for IPython Parallel and Broadleaf have in common.
_VIEWS = """
def keep():
    rc[:].push({"kept": 41}, block=True)

def n_kept():
    values = [tried(lambda engine=engine: rc[engine].apply_async(lambda: kept).get(timeout=10)) for engine in names]
    return values.count(41)

def submit():
    view = rc.load_balanced_view()
    return [view.apply_async(work, log, i) for i in range(n_tasks)]

def first_there():
    return rc[there[0]].apply_async(int).get(timeout=patience_s)

def is_ended(result):
    return result.ready()

def value_of(result):
    return result.get(timeout=5)

main()
"""

_IPYPARALLEL = """
import ipyparallel as ipp
rc = ipp.Client(where)
rc.wait_for_engines(4, interactive=False)

def address():
    import socket
    return socket.gethostname()

names = dict(zip(rc.ids, rc[:].apply_sync(address)))
there = [engine for engine, name in names.items() if name.endswith("h1")]
"""

_RAY = """
import ray
ray.init(address=where, log_to_driver=False)

@ray.remote(num_cpus=0)
class Keeper:
    def put(self):
        self.kept = 41
    def get(self):
        return self.kept

until(lambda: ray.cluster_resources().get("CPU", 0) == 4, 60)
keepers = [Keeper.options(resources={host: 0.001}).remote() for host in ("host1", "host1", "host2", "host2")]

def keep():
    ray.get([keeper.put.remote() for keeper in keepers], timeout=120)

def n_kept():
    return [tried(lambda k=k: ray.get(k.get.remote(), timeout=10)) for k in keepers].count(41)

def submit():
    task = ray.remote(num_cpus=1)(work)
    return [task.remote(log, i) for i in range(n_tasks)]

def first_there():
    task = ray.remote(num_cpus=0, resources={"host1": 0.001})(lambda: 0)
    return ray.get(task.remote(), timeout=patience_s)

def is_ended(reference):
    return bool(ray.wait([reference], timeout=0)[0])

def value_of(reference):
    return ray.get(reference, timeout=5)

main()
"""

_BROADLEAF = """
import broadleaf as ipp
rc = ipp.Client(cluster_id=where)
rc.wait_for_engines(4)
names = {engine: name for engine, _, _, name in rc.link.engines()}
there = [engine for engine, name in names.items() if name == "host1"]
"""


@dataclass(frozen=True)
class Peer:
    python: str
    program: str
    #: Starts it on a network; returns what the program needs to connect.
    start: Callable[[Network, Path, ExitStack, str], str]


def background(network: Network, stack: ExitStack, host: Host, *command: str) -> None:
    """Has a command run on a host until the end of the round; `network.close` ends its children."""
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    child = subprocess.Popen(
        [*network.shell(host), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    stack.callback(child.wait)
    stack.callback(child.kill)


def start_dask(network: Network, directory: Path, stack: ExitStack, python: str) -> str:
    head = network.hosts[0]
    where = f"tcp://{head.address}:8786"
    background(network, stack, head, python, "-m", "distributed.cli.dask_scheduler", "--host", head.address,
               "--port", "8786", "--no-dashboard")  # fmt: skip
    for host in network.hosts[1:]:
        background(network, stack, host, python, "-m", "distributed.cli.dask_worker", where, "--nworkers", "2",
                   "--nthreads", "1", "--host", host.address, "--no-dashboard",
                   "--local-directory", str(directory))  # fmt: skip
    return where


def start_ipyparallel(network: Network, directory: Path, stack: ExitStack, python: str) -> str:
    head, security = network.hosts[0], directory / "security"
    background(network, stack, head, python, "-m", "ipyparallel.controller", f"--ip={head.address}",
               f"--location={head.address}", f"--profile-dir={directory}")  # fmt: skip
    client = security / "ipcontroller-client.json"
    wait_until(client.exists, 120, "the controller starts")
    for host in network.hosts[1:]:
        for _ in range(2):
            background(network, stack, host, python, "-m", "ipyparallel.engine",
                       f"--file={security / 'ipcontroller-engine.json'}", f"--profile-dir={directory}")  # fmt: skip
    return str(client)


def start_ray(network: Network, directory: Path, stack: ExitStack, python: str) -> str:
    head, ray = network.hosts[0], str(Path(python).with_name("ray"))
    common = ("start", "--block", "--disable-usage-stats", "--object-store-memory=200000000")
    background(network, stack, head, ray, *common, "--head", "--port=6379", "--num-cpus=0",
               "--include-dashboard=false", f"--node-ip-address={head.address}")  # fmt: skip
    for host in network.hosts[1:]:
        background(network, stack, host, ray, *common, f"--address={head.address}:6379", "--num-cpus=2",
                   f"--node-ip-address={host.address}", f'--resources={{"host{host.index}": 100}}')  # fmt: skip
    return f"{head.address}:6379"


def start_broadleaf(network: Network, directory: Path, stack: ExitStack, python: str) -> str:
    return stack.enter_context(HostedCluster(network, 2, "peers")).cluster_id


PEERS = {
    "broadleaf": Peer(sys.executable, _BROADLEAF + _VIEWS, start_broadleaf),
    "dask": Peer(sys.executable, _DASK, start_dask),
    "ipyparallel": Peer(str(CHECKOUT / ".peers-venv/bin/python"), _IPYPARALLEL + _VIEWS, start_ipyparallel),
    "ray": Peer(str(CHECKOUT / ".ray-venv/bin/python"), _RAY, start_ray),
}


@contextmanager
def broken(network: Network, host: Host, fault: str) -> Iterator[None]:
    if fault == "cut":
        network.cut(host)
        yield
        network.join(host)
    else:
        network.signal(host, SIGSTOP)
        yield
        network.signal(host, SIGCONT)


def told(program: subprocess.Popen[str]) -> dict[str, object]:
    """The program's next line of ours; systems print lines of their own."""
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("{"):
            found: dict[str, object] = json.loads(line)
            return found
    raise RuntimeError(f"the program has ended with {program.wait()}")


def run(peer: Peer, fault: str, seconds: float) -> dict[str, object]:
    """One round: how tasks ended, how many ran more than once or never, which variables are left."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        network = stack.enter_context(Network(2))
        host, log = network.hosts[1], directory / "ran"
        log.touch()
        where = peer.start(network, directory, stack, peer.python)
        arguments = [where, str(log), host.address, str(TASKS), str(PATIENCE_S)]
        command = [peer.python, "-W", "ignore", "-c", _COMMON + peer.program, *arguments]
        program = stack.enter_context(subprocess.Popen(
            [*network.shell(network.hosts[0]), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ))  # fmt: skip
        stack.callback(program.kill)
        too_late = Timer(STANDS_STILL_S, program.kill)
        too_late.start()
        stack.callback(too_late.cancel)
        assert program.stdin is not None
        assert told(program)["began"]
        with broken(network, host, fault):
            time.sleep(seconds)
        print(file=program.stdin, flush=True)
        found = told(program)
        ran = Counter(log.read_text().split())
        return found | {"twice": sum(n > 1 for n in ran.values()), "never": TASKS - len(ran)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="append", choices=sorted(PEERS))
    parser.add_argument("--fault", action="append", help="cut or stop, with -SECONDS")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--to", type=Path, help="a file that a line of JSON for each round is added to")
    arguments = parser.parse_args()
    for _ in range(arguments.rounds):
        for one in arguments.fault or ["cut-9", "cut-35", "stop-14"]:
            for name in arguments.peer or PEERS:
                fault, _, seconds = one.rpartition("-")
                try:
                    found = run(PEERS[name], fault, float(seconds))
                except RuntimeError as error:
                    found = {"problem": str(error)}
                line = json.dumps({"peer": name, "fault": one, **found})
                print(line, flush=True)
                if arguments.to:
                    with arguments.to.open("a") as file:
                        print(line, file=file)


if __name__ == "__main__":
    main()

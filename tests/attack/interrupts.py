"""Ctrl-C at random moments of every kind of wait and submission.

`interrupts.py --count 200 [--kind NAME] [--seed 1]`: after each, the tasks of the interrupted statement must be gone
within two seconds, and the next call must return.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import json
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import broadleaf as ipp
import numpy as np
from broadleaf.interop import aio

sys.path.insert(0, str(Path(__file__).parents[1]))

from waiting import until

ENGINES = 2
ITEMS = 300
#: Moments are chosen between these, as many in each decade: some in the submission, some in the wait.
FIRST_S, LAST_S = 20e-6, 0.3


def work(i: Any) -> int:
    """Most items are quick, and all of them together take half a minute on two engines."""
    i = int(i) if isinstance(i, int) else int(i[0])
    time.sleep(1.0 if i % 5 == 0 else 0.001)
    return i


def arrays(n: int, length: int) -> list[Any]:
    return [np.full(length, i) for i in range(n)]


Arm = Callable[[], None]
Kind = Callable[[ipp.Client, Arm], Any]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


# Each arms the clock where the statement begins. What it returns has not been waited for, and is aborted.


@kind
def apply_sync(client: ipp.Client, arm: Arm) -> None:
    view = client.load_balanced_view()
    arm()
    for i in range(ITEMS):
        view.apply_sync(work, i)


@kind
def apply_async_of_an_array(client: ipp.Client, arm: Arm) -> Any:
    view, array = client.load_balanced_view(), np.zeros(3_000_000)
    arm()
    return view.apply_async(work, array)


@kind
def map_sync(client: ipp.Client, arm: Arm) -> None:
    view = client.load_balanced_view()
    arm()
    view.map_sync(work, range(ITEMS), chunksize=1)


@kind
def map_sync_of_arrays(client: ipp.Client, arm: Arm) -> None:
    view, items = client.load_balanced_view(), arrays(ITEMS, 40_000)
    arm()
    view.map_sync(work, items, chunksize=1)


@kind
def map_sync_of_an_iterator(client: ipp.Client, arm: Arm) -> None:
    view, items = client.load_balanced_view(), arrays(4, 2_000_000)
    arm()
    view.map_sync(work, (items[i % 4] for i in range(ITEMS)), chunksize=1)


@kind
def map_async(client: ipp.Client, arm: Arm) -> Any:
    view = client.load_balanced_view()
    arm()
    return view.map_async(work, range(ITEMS), chunksize=1)


@kind
def imap(client: ipp.Client, arm: Arm) -> None:
    view = client.load_balanced_view()
    arm()
    for _ in view.imap(work, range(ITEMS)):
        pass


@kind
def imap_unordered(client: ipp.Client, arm: Arm) -> None:
    view = client.load_balanced_view()
    arm()
    for _ in view.imap(work, range(ITEMS), ordered=False, max_outstanding=0):
        pass


@kind
def parallel_function(client: ipp.Client, arm: Arm) -> None:
    function = client.load_balanced_view().parallel(block=True)(work)
    arm()
    function.map(range(ITEMS))


@kind
def direct_apply_sync(client: ipp.Client, arm: Arm) -> None:
    view = client[:]
    arm()
    for i in range(ITEMS):
        view.apply_sync(work, i)


@kind
def direct_map_sync(client: ipp.Client, arm: Arm) -> None:
    view = client[:]
    arm()
    view.map_sync(work, range(ITEMS))


@kind
def direct_imap(client: ipp.Client, arm: Arm) -> None:
    view = client[:]
    arm()
    for _ in view.imap(work, range(ITEMS)):
        pass


@kind
def broadcast_apply_sync(client: ipp.Client, arm: Arm) -> None:
    view = client.broadcast_view(coalescing=True)
    arm()
    for i in range(ITEMS):
        view.apply_sync(work, i)


@kind
def scatter_and_execute(client: ipp.Client, arm: Arm) -> None:
    view, array = client[:], np.zeros((100, 20_000))
    arm()
    for _ in range(ITEMS):
        view.scatter("part", array, block=True)
        view.execute("import time; time.sleep(0.05)", block=True)


@kind
def executor_submit(client: ipp.Client, arm: Arm) -> None:
    arm()
    with client.executor() as pool:
        for future in [pool.submit(work, i) for i in range(ITEMS)]:
            future.result()


@kind
def executor_map(client: ipp.Client, arm: Arm) -> None:
    arm()
    with client.executor() as pool:
        for _ in pool.map(work, range(ITEMS)):
            pass


@kind
def executor_map_alone(client: ipp.Client, arm: Arm) -> None:
    pool = client.executor()
    arm()
    for _ in pool.map(work, range(ITEMS)):
        pass


@kind
def executor_map_of_chunks(client: ipp.Client, arm: Arm) -> None:
    pool = client.executor()
    arm()
    for _ in pool.map(work, range(ITEMS), chunksize=3, timeout=60):
        pass


@kind
def futures_wait(client: ipp.Client, arm: Arm) -> None:
    arm()
    with client.executor() as pool:
        concurrent.futures.wait([pool.submit(work, i) for i in range(ITEMS)])


@kind
def futures_as_completed(client: ipp.Client, arm: Arm) -> None:
    arm()
    with client.executor() as pool:
        for _ in concurrent.futures.as_completed([pool.submit(work, i) for i in range(ITEMS)]):
            pass


@kind
def client_wait(client: ipp.Client, arm: Arm) -> None:
    results = [client.load_balanced_view().apply_async(work, i) for i in range(ITEMS)]
    arm()
    client.wait(results)


@kind
def joblib_parallel(client: ipp.Client, arm: Arm) -> None:
    import joblib

    client.load_balanced_view().register_joblib_backend("attacked")
    parallel = joblib.Parallel(backend="attacked", n_jobs=-1, batch_size=1)
    arm()
    parallel(joblib.delayed(work)(i) for i in range(ITEMS))


@kind
def asyncio_map(client: ipp.Client, arm: Arm) -> None:
    view = client.load_balanced_view()

    async def main() -> None:
        async for _ in view.imap(work, range(ITEMS)):
            pass

    arm()
    asyncio.run(main())


@kind
def asyncio_wait(client: ipp.Client, arm: Arm) -> None:
    results = [client.load_balanced_view().apply_async(work, i) for i in range(ITEMS)]

    async def main() -> None:
        arm()
        await aio.wait(results)

    asyncio.run(main())


# The clock -----------------------------------------------------------------------------------------


class Attack:
    """A cluster of this host, and what went wrong."""

    def __init__(self, seed: int, within_s: float) -> None:
        self.rng = Random(seed)
        self.within_s = within_s
        self.client = ipp.Cluster(n=ENGINES).start_and_connect_sync()
        self.is_armed = False
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    def on_alarm(self, _number: int, _frame: object) -> None:
        # A thread may be given the signal late, when its statement has ended.
        if self.is_armed:
            self.is_armed = False
            signal.raise_signal(signal.SIGINT)

    def close(self) -> None:
        self.client.close()
        self.client.cluster.stop_cluster_sync()

    def interrupt(self, name: str) -> None:
        """Sends Ctrl-C at a random moment of a statement of this kind, and checks what is left."""
        at_s = FIRST_S * math.exp(self.rng.random() * math.log(LAST_S / FIRST_S))
        result = None

        def arm() -> None:
            self.is_armed = True
            signal.setitimer(signal.ITIMER_REAL, at_s)

        try:
            result = KINDS[name](self.client, arm)
            self.is_armed = False
            self.ended["before Ctrl-C"] += 1
        except KeyboardInterrupt:
            self.ended["by Ctrl-C"] += 1
        except BaseException as error:
            self.is_armed = False
            self.wrong.append(f"{name} at {at_s * 1e3:.3f} ms: {type(error).__name__}: {error}")
        if result is not None and not result.done():
            result.abort()
        del result
        if not until(self.is_idle, self.within_s):
            left = f"{len(self.client.outstanding)} tasks outstanding, {self.client.queue_status()}"
            self.wrong.append(f"{name} at {at_s * 1e3:.3f} ms: after {self.within_s:g} s {left}")
            self.client.abort()
            self.client.wait(timeout=60)
        try:
            self.client[:].apply_async(abs, -1).get(60)
        except BaseException as error:
            self.wrong.append(f"{name} at {at_s * 1e3:.3f} ms: the next call: {type(error).__name__}: {error}")

    def is_idle(self) -> bool:
        """Whether no task runs or waits, here or on any engine."""
        if self.client.outstanding:
            return False
        status = self.client.queue_status()
        idle = [each for each in status.values() if isinstance(each, dict)]
        return status["unassigned"] == 0 and not any(each["queue"] or each["tasks"] for each in idle)


def run(count: int, seed: int, within_s: float, names: list[str] | None = None) -> dict[str, Any]:
    """Interrupts `count` statements of each kind; `wrong` is empty if all is well."""
    attack = Attack(seed, within_s)
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    clock = signal.signal(signal.SIGALRM, attack.on_alarm)
    try:
        for name in names or KINDS:
            for _ in range(count):
                attack.interrupt(name)
    finally:
        attack.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, clock)
        signal.signal(signal.SIGINT, ctrl_c)
        attack.close()
    return {"seed": seed, "ended": attack.ended, "wrong": attack.wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--within", type=float, default=2.0, help="seconds")
    options = parser.parse_args()
    found = run(options.count, options.seed, options.within, options.kind)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()

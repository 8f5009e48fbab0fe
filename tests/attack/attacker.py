"""A client that does random things until its time is up: `attacker.py CONNECTION SEED SECONDS [MAX_DESCRIPTORS]`.

Prints a line of JSON: how often it did what, the errors to be expected in a cluster whose engines are killed, and what
must never happen: wrong values, and errors of other kinds.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import broadleaf as ipp
from operations import OPERATIONS, StartedAgain, WrongValue

#: What may happen to a task while engines and hosts are killed. A task that ends in any other way has a defect.
OF_FAULTS = (ipp.EngineError, ipp.NoEnginesRegistered, ipp.TaskAborted, ipp.ImpossibleDependency, StartedAgain)


def is_of_a_fault(error: BaseException) -> bool:
    if isinstance(error, ipp.CompositeError):
        return all(is_of_a_fault(each) for each in error.exceptions)
    # What a task that waited for tasks raised.
    if isinstance(error, ipp.RemoteError) and error.ename in {fault.__name__ for fault in OF_FAULTS}:
        return True
    # An engine that has just gone is no longer a target.
    return isinstance(error, OF_FAULTS) or (isinstance(error, IndexError) and "engine" in str(error))


def attack(connection: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    rng = Random(seed)
    done: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    wrong: list[str] = []
    deadline = time.monotonic() + seconds
    client = ipp.Client(connection)
    try:
        while time.monotonic() < deadline:
            if rng.random() < 0.01:  # with unfinished results, or without
                client.close()
                client = ipp.Client(connection)
            name = rng.choice(list(OPERATIONS))
            try:
                OPERATIONS[name](client, rng)
            except WrongValue as error:
                wrong.append(f"{name}: {error}")
            except Exception as error:
                if is_of_a_fault(error):
                    faults[f"{name}: {type(error).__name__}"] += 1
                else:
                    wrong.append(f"{name}: {traceback.format_exc()}")
            done[name] += 1
    finally:
        client.close()
    return {"seed": seed, "done": done, "faults": faults, "wrong": wrong}


def main() -> None:
    path, seed, seconds, *max_descriptors = sys.argv[1:]
    if max_descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(max_descriptors[0]),) * 2)
    connection = json.loads(Path(path).read_text())
    print(json.dumps(attack(connection, int(seed), float(seconds))))


if __name__ == "__main__":
    main()

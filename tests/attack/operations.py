"""What an attacker does with a cluster, at random. Every value that comes back is compared with the right one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import as_completed
from contextlib import suppress
from random import Random
from typing import Any

import broadleaf as ipp
import numpy as np

#: No task takes this long, whatever is done to its engine.
LONGEST_S = 60.0


class WrongValue(Exception):
    """A call returned something other than it must."""


class StartedAgain(Exception):
    """An engine was restarted between two calls, and what the first left there is gone."""


def expect(right: bool, what: str) -> None:
    if not right:
        raise WrongValue(what)


def array(rng: Random) -> np.ndarray[Any, Any]:
    """An array of 8 bytes to 4 MB: most are small."""
    n = int(2 ** rng.uniform(0, 19))
    return np.random.default_rng(rng.randrange(1 << 30)).integers(0, 1 << 40, n)


def some_targets(client: ipp.Client, rng: Random) -> list[int]:
    ids = client.ids
    if not ids:
        raise ipp.NoEnginesRegistered("none is up at the moment")
    return sorted(rng.sample(ids, rng.randint(1, len(ids))))


def add(*numbers: int) -> int:
    return sum(numbers)


def doubled(x: Any) -> Any:
    return x * 2


def checksum(x: np.ndarray[Any, Any]) -> int:
    return int(x.sum())


def one_call(client: ipp.Client, rng: Random) -> None:
    numbers = [rng.randrange(1 << 40) for _ in range(rng.randint(0, 9))]
    got = client.load_balanced_view().apply_async(add, *numbers).get(LONGEST_S)
    expect(got == sum(numbers), f"the sum of {numbers} is not {got}")


def many_calls(client: ipp.Client, rng: Random) -> None:
    n, chunksize = rng.randint(1, 3000), rng.choice([None, 1, 7, 100])
    got = client.load_balanced_view().map_async(doubled, range(n), chunksize=chunksize).get(LONGEST_S)
    expect(list(got) == [2 * i for i in range(n)], f"a map over {n} items in chunks of {chunksize}")


def echo(client: ipp.Client, rng: Random) -> None:
    sent = array(rng)
    got = client.load_balanced_view().apply_async(doubled, sent).get(LONGEST_S)
    expect(got.dtype == sent.dtype and np.array_equal(got, 2 * sent), f"an array of {sent.nbytes} bytes changed")


def same_array_again(client: ipp.Client, rng: Random) -> None:
    sent = array(rng)
    view = client.load_balanced_view()
    results = [view.apply_async(checksum, sent) for _ in range(5)]
    before = int(sent.sum())
    expect([r.get(LONGEST_S) for r in results] == [before] * 5, "one array, sent five times")


def left_there(call: Callable[[], Any]) -> Any:
    """The value of a call that needs a variable of an earlier one."""
    try:
        return call()
    except ipp.CompositeError as error:
        if any(isinstance(each, NameError) for each in error.exceptions):
            raise StartedAgain from error
        raise


def push_and_pull(client: ipp.Client, rng: Random) -> None:
    view = client[some_targets(client, rng)]
    name, sent = f"a{rng.randrange(1 << 60)}", array(rng)
    view.push({name: sent}, block=False).get(LONGEST_S)
    got = left_there(lambda: view.pull(name, block=False).get(LONGEST_S))
    expect(all(np.array_equal(one, sent) for one in got), "what was pulled is not what was pushed")
    left_there(lambda: view.execute(f"del {name}", block=False).get(LONGEST_S))


def broadcast(client: ipp.Client, rng: Random) -> None:
    targets = some_targets(client, rng)
    sent = array(rng)
    got = client.broadcast_view(targets).apply_async(checksum, sent).get(LONGEST_S)
    expect(list(got) == [int(sent.sum())] * len(targets), "engines got different arrays")


def scatter_and_gather(client: ipp.Client, rng: Random) -> None:
    view = client[some_targets(client, rng)]
    name, sent = f"s{rng.randrange(1 << 60)}", array(rng)
    view.scatter(name, sent, block=False).get(LONGEST_S)
    got = left_there(lambda: view.gather(name, block=False).get(LONGEST_S))
    expect(np.array_equal(got, sent), "what was gathered is not what was scattered")
    left_there(lambda: view.execute(f"del {name}", block=False).get(LONGEST_S))


def failure(client: ipp.Client, rng: Random) -> None:
    token = f"token {rng.randrange(1 << 60)}"

    def fail(text: str) -> None:
        raise ValueError(text)

    try:
        client.load_balanced_view().apply_async(fail, token).get(LONGEST_S)
    except ValueError as error:
        expect(token in str(error), f"another task's error: {error}")
    else:
        raise WrongValue("a task that raises returned")


def abort(client: ipp.Client, rng: Random) -> None:
    view = client.load_balanced_view()
    results = [view.apply_async(time.sleep, 0.05) for _ in range(rng.randint(1, 20))]
    for result in rng.sample(results, len(results) // 2):
        with suppress(RuntimeError):  # it is done already
            result.abort()
    for result in results:
        try:
            expect(result.get(LONGEST_S) is None, "sleep returns None")
        except ipp.TaskAborted:
            continue


def timeout(client: ipp.Client, rng: Random) -> None:
    view = client.load_balanced_view()
    with view.temp_flags(timeout=0.05):
        result = view.apply_async(time.sleep, 30)
    try:
        result.get(LONGEST_S)
    except ipp.TaskTimeout:
        return
    raise WrongValue("a task outlived its timeout")


def dropped(client: ipp.Client, rng: Random) -> None:
    view = client.load_balanced_view()
    for _ in range(rng.randint(1, 10)):
        view.apply_async(np.ones, rng.choice([10, 10_000, 100_000, 500_000]))


def nested(client: ipp.Client, rng: Random) -> None:
    def outer(n: int) -> int:
        import broadleaf

        inner = broadleaf.get_client().load_balanced_view()
        try:
            return sum(inner.map_async(abs, range(-n, 0), chunksize=1).get(60))
        except broadleaf.CompositeError as error:
            raise error.exceptions[0] from None  # its type says whether that was to be expected

    sizes = [rng.randint(1, 20) for _ in range(4)]
    got = client.load_balanced_view(local_targets(client)).map_async(outer, sizes, chunksize=1).get(LONGEST_S)
    expect(list(got) == [n * (n + 1) // 2 for n in sizes], f"nested maps of {sizes}")


def local_targets(client: ipp.Client) -> list[int]:
    """Engines of the controller's host, whose tasks can be clients."""
    local = [engine for engine, _, _, host in client.link.engines() if host != "relay"]
    if not local:
        raise ipp.NoEnginesRegistered("none is up at the moment")
    return local


def output(client: ipp.Client, rng: Random) -> None:
    lines = [f"line {rng.randrange(1 << 60)}" for _ in range(rng.randint(1, 30))]

    def write(lines: list[str]) -> None:
        for line in lines:
            print(line)

    result = client.load_balanced_view().apply_async(write, lines)
    result.get(LONGEST_S)
    expect(result.stdout.splitlines() == lines, f"what it printed: {result.stdout!r} instead of {lines}")


def captured(client: ipp.Client, rng: Random) -> None:
    sent = array(rng)
    got = client.load_balanced_view().map_async(lambda i: int(sent[i]), [0, len(sent) - 1]).get(LONGEST_S)
    expect(list(got) == [int(sent[0]), int(sent[-1])], "a captured array is another one there")


def dependencies(client: ipp.Client, rng: Random) -> None:
    view = client.load_balanced_view()
    first = view.apply_async(time.time)
    with view.temp_flags(after=[first]):
        second = view.apply_async(time.time)
    expect(second.get(LONGEST_S) >= first.get(LONGEST_S) - 0.05, "a task ran before what it comes after")


def futures(client: ipp.Client, rng: Random) -> None:
    executor = client.executor()
    numbers = [rng.randrange(1000) for _ in range(20)]
    expected = sorted(2 * n for n in numbers)
    done = as_completed([executor.submit(doubled, n) for n in numbers], timeout=LONGEST_S)
    expect(sorted(future.result() for future in done) == expected, "futures of an executor")


def awaited(client: ipp.Client, rng: Random) -> None:
    n = rng.randrange(1000)

    async def wait() -> Any:
        return await client.load_balanced_view().apply_async(doubled, n)

    expect(asyncio.run(asyncio.wait_for(wait(), LONGEST_S)) == 2 * n, "an awaited result")


OPERATIONS: dict[str, Callable[[ipp.Client, Random], None]] = {
    operation.__name__: operation
    for operation in (
        one_call,
        many_calls,
        echo,
        same_array_again,
        push_and_pull,
        broadcast,
        scatter_and_gather,
        failure,
        abort,
        timeout,
        dropped,
        nested,
        output,
        captured,
        dependencies,
        futures,
        awaited,
    )
}

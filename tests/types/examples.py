"""What type checkers know about calls: `make lint` has mypy and pyright check every line. Nothing here runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, assert_type

import broadleaf as ipp
import numpy as np
from numpy.typing import NDArray


def length(text: str) -> int:
    return len(text)


async def awaited(text: str) -> float:
    return float(text)


def untyped(x):  # type: ignore[no-untyped-def]
    return x


def balanced(view: ipp.LoadBalancedView, wait: bool) -> None:
    assert_type(view.apply_sync(length, "a"), int)
    assert_type(view.apply_sync(length, ipp.Reference("text")), int)
    assert_type(view.apply_sync(awaited, "1"), float)
    assert_type(view.apply_async(length, "a"), ipp.AsyncResult[int])
    assert_type(view.apply_async(awaited, "1"), ipp.AsyncResult[float])
    assert_type(view.apply_sync(untyped, 1), Any)
    assert_type(view.map_sync(length, ["a"]), list[int])
    assert_type(view.map_sync(length, ["a"], chunksize=2), list[int])
    assert_type(view.map_sync(length, ["a"], return_exceptions=True), list[Any])
    assert_type(view.map_async(length, ["a"]), ipp.AsyncMapResult[int])
    assert_type(view.map_async(awaited, ["1"]).get(), list[float])
    assert_type(view.map(length, ["a"], block=True), list[int])
    assert_type(view.map(length, ["a"], block=False, ordered=False), ipp.AsyncMapResult[int])
    assert_type(view.map(length, ["a"], block=False, return_exceptions=True), Any)
    # What the view's flag decides is not known.
    assert_type(view.map(length, ["a"]), Any)
    assert_type(view.map(length, ["a"], block=wait), Any)
    assert_type(view.imap(length, ["a"]), ipp.LazyMapIterator[int])
    assert_type(next(view.imap(awaited, ["1"])), float)
    assert_type(view.imap_unordered(length, ["a"], chunksize=2), ipp.LazyMapIterator[int])
    assert_type(view.starmap(length, [("a",)], block=True), list[int])
    assert_type(view.starmap(awaited, [("1",)], block=False), ipp.AsyncMapResult[float])
    assert_type(view.starmap(length, [("a",)]), Any)


def direct(view: ipp.DirectView) -> None:
    # A view of one engine gives a value, another a list.
    assert_type(view.apply_sync(length, "a"), Any)
    assert_type(view.apply_async(length, "a"), ipp.AsyncResult)
    assert_type(view.map_sync(length, ["a"]), list[int])
    assert_type(view.map(length, ["a"], block=True), list[int])
    assert_type(view.map_async(length, ["a"]), ipp.AsyncMapResult[int])
    assert_type(view.imap(length, ["a"]), ipp.MapIterator[int])
    assert_type(view.push({"a": 1}, block=True), None | list[None])
    assert_type(view.push({"a": 1}, block=False), ipp.AsyncResult[None | list[None]])
    assert_type(view.push({"a": 1}), Any)
    assert_type(view.broadcast(1, "a", block=True), None | list[None])
    assert_type(view.pull("a", block=False), ipp.AsyncResult)
    assert_type(view.pull("a", block=True), Any)
    assert_type(view.scatter("a", [1, 2], block=True), None)
    assert_type(view.gather("a", block=False), ipp.AsyncResult)
    assert_type(view.clear(block=True), None | list[None])
    assert_type(view.execute("a = 1"), ipp.AsyncResult)


def results(result: ipp.AsyncResult[int], mapped: ipp.AsyncMapResult[str], plain: ipp.AsyncResult) -> None:
    assert_type(result.get(), int)
    assert_type(result.get(1.0, return_exceptions=True), Any)
    assert_type(result.r, int)
    assert_type(result.result(), int)
    assert_type(result.wait(), bool)
    assert_type(mapped.get(), list[str])
    assert_type(list(mapped), list[str])
    assert_type(plain.get(), Any)
    future: Future[int] = result
    assert_type(future.result(), int)


async def awaiting(result: ipp.AsyncResult[int]) -> None:
    assert_type(await ipp.Cluster().start_and_connect(), ipp.Client)
    assert_type(await result, Any)


def clients(rc: ipp.Client) -> None:
    assert_type(rc[0], ipp.DirectView)
    rc.wait_for_engines(4)
    assert_type(rc.wait_for_engines(4, block=False), Future[None] | None)
    assert_type(rc.queue_status(0), dict[str, int])
    assert_type(rc.clear(block=False), ipp.AsyncResult[None | list[None]])
    assert_type(rc.submit(length, "a"), ipp.AsyncResult[int])
    assert_type(rc.submit(awaited, "1"), ipp.AsyncResult[float])
    assert_type(rc.map(length, ["a"], chunksize=2), ipp.AsyncMapResult[int])
    assert_type(rc.map(length, ["a"], return_exceptions=True), ipp.AsyncMapResult[Any])
    with rc.executor(initializer=print, initargs=("a",)) as pool:
        assert_type(pool.map(length, ["a"]), Iterator[int])
        assert_type(pool.map(length, ["a"], buffersize=2), Iterator[int])
        assert_type(pool.submit(length, "a"), ipp.AsyncResult)


def pools(pool: ipp.Pool) -> None:
    assert_type(pool.apply(length, ("a",)), int)
    assert_type(pool.apply_async(length, ["a"]).get(), int)
    assert_type(pool.map(length, ["a"]), list[int])
    assert_type(pool.starmap_async(length, [("a",)]).get(), list[int])
    assert_type(next(pool.imap_unordered(length, ["a"])), int)


def data(values: NDArray[np.int32]) -> None:
    assert_type(ipp.PrePickled("a").load(), str)
    assert_type(ipp.empty(3), NDArray[np.float64])
    assert_type(ipp.zeros((2, 3), np.float32), NDArray[np.float32])
    assert_type(ipp.empty(3, "int8"), NDArray[Any])
    assert_type(ipp.asarray(values), NDArray[np.int32])
    assert_type(ipp.asarray([1, 2], np.int16), NDArray[np.int16])


@ipp.interactive
def kept(text: str) -> int:
    return len(text)


assert_type(kept("a"), int)

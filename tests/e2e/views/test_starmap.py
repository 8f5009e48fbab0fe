"""Maps over tuples of arguments, and lazy maps in chunks."""

import asyncio
import itertools

import broadleaf as ipp
import pytest
from broadleaf import error


@ipp.interactive
def joined(*words):
    if "bad" in words:
        raise ValueError("bad " + "-".join(words))
    return "-".join(words)


PAIRS = [(str(n), str(n + 1)) for n in range(100)]
EXPECTED = ["-".join(pair) for pair in PAIRS]
SOURCES = {"list": list, "iterator": iter, "lists": lambda pairs: map(list, pairs)}


@pytest.mark.parametrize("chunksize", [None, 1, 7, 1000])
@pytest.mark.parametrize("source", SOURCES)
def test_starmap_calls_with_the_arguments_of_each_item(lview, source, chunksize):
    result = lview.starmap(joined, SOURCES[source](PAIRS), chunksize=chunksize, block=False)
    assert len(result) == len(PAIRS)
    assert result.get() == list(result) == EXPECTED


@pytest.mark.parametrize("source", [list, iter])
def test_items_may_differ_in_their_number_of_arguments(lview, source):
    items = [("a",), (), ("b", "c", "d")]
    assert lview.starmap(joined, source(items), chunksize=2, block=True) == ["a", "", "b-c-d"]
    assert lview.starmap(joined, source([()] * 3), block=True) == [""] * 3
    assert lview.starmap(joined, source([]), block=True) == []


def test_starmap_says_which_item_failed(lview):
    items = [("good",), ("a", "bad"), ("fine",)]
    for chunksize in (1, 3):
        values = lview.starmap(joined, items, chunksize=chunksize, return_exceptions=True, block=True)
        assert [values[0], values[2]] == ["good", "fine"]
        assert isinstance(values[1], ValueError)
        assert values[1].item_index == 1
        with pytest.raises(error.CompositeError, match="bad a-bad"):
            lview.starmap(joined, items, chunksize=chunksize, block=True)


def test_starmap_takes_the_options_of_map(lview):
    result = lview.starmap(joined, PAIRS, block=False, ordered=False, label="pairs")
    assert sorted(result) == sorted(EXPECTED)
    assert result.metadata[0].label == "pairs"
    assert lview.label is None
    with pytest.raises(ValueError, match="chunksize must be a number of items"):
        lview.starmap(joined, PAIRS, chunksize=-1)
    with pytest.raises(TypeError, match="not iterable"):
        lview.starmap(joined, [1, 2])
    with pytest.raises(TypeError, match="first argument of a map is the function"):
        lview.starmap(PAIRS, joined)


@ipp.interactive
def inverse(n):
    return 12 // n


@pytest.mark.parametrize("ordered", [True, False])
def test_a_lazy_map_in_chunks_takes_items_as_values_are_taken(lview, ordered):
    taken = []
    source = (taken.append(n) or n for n in itertools.count(1))
    values = lview.imap(inverse, source, ordered=ordered, max_outstanding=3, chunksize=5)
    assert len(taken) == 15
    first = [next(values) for _ in range(5)]
    assert sorted(first) in [sorted(inverse(n) for n in range(low, low + 5)) for low in (1, 6, 11)]
    assert len(taken) == 20
    assert "chunk" in repr(values)
    values.close()
    assert list(values) == []


def test_a_lazy_map_in_chunks_goes_on_after_an_item_that_raised(lview):
    items = [1, 0, 2, 3, 0]
    values = lview.imap(inverse, items, chunksize=2)
    assert next(values) == 12
    with pytest.raises(ZeroDivisionError) as raised:
        next(values)
    assert raised.value.item_index == 1
    assert [next(values), next(values)] == [6, 4]
    with pytest.raises(ZeroDivisionError) as raised:
        next(values)
    assert raised.value.item_index == 4
    assert list(values) == []
    kept = list(lview.imap(inverse, items, chunksize=2, return_exceptions=True))
    assert [kept[0], *kept[2:4]] == [12, 6, 4]
    assert all(isinstance(kept[n], ZeroDivisionError) for n in (1, 4))


def test_imap_unordered_yields_as_values_arrive(lview, gate):
    values = lview.imap_unordered(gate.task_for(0), range(4), max_outstanding=2)
    assert [next(values) for _ in range(3)] == [1, 2, 3]
    gate.open()
    assert list(values) == [0]


def test_async_for_over_a_lazy_map_in_chunks(lview):
    async def taken(ordered):
        return [n async for n in lview.imap(abs, range(-20, 0), chunksize=3, ordered=ordered)]

    assert asyncio.run(taken(True)) == list(range(20, 0, -1))
    assert sorted(asyncio.run(taken(False))) == list(range(1, 21))


def test_a_lazy_map_checks_its_chunksize(lview):
    with pytest.raises(ValueError, match="chunksize must be a number of items"):
        lview.imap(abs, [1], chunksize=0)

"""The numbers of the tasks submitted last."""

from broadleaf import _native


def test_tasks_in_a_row_are_kept_in_order_and_the_oldest_are_forgotten():
    history = _native.History(4)
    assert (len(history), history.seqs()) == (0, [])
    for first, n in ((0, 1), (1, 1), (7, 2)):
        history.record(first, n)
    assert history.seqs() == [0, 1, 7, 8]
    assert history.select([0, 2, 7, 9]) == [0, 7]
    history.record(20, 3)
    assert (len(history), history.seqs()) == (4, [8, 20, 21, 22])
    assert history.select([3, 8, 15, 21]) == [3, 8, 21], "3 may have been forgotten"
    history.clear()
    assert (len(history), history.seqs(), history.select([21])) == (0, [], [])


def test_more_at_once_than_there_is_room_for():
    history = _native.History(4)
    history.record(10, 100)
    assert history.seqs() == [106, 107, 108, 109]

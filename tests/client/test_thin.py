import broadleaf as ipp


def test_apply(rc):
    assert rc.ids == [0, 1, 2, 3]
    v = rc[:]
    assert v.apply_sync(lambda x: x + 1, 2) == [3] * 4
    assert rc[0].apply_sync(lambda x: x + 1, 2) == 3
    v["a"] = 5
    assert v["a"] == [5] * 4
    v.execute("b = a + engine_id", block=True)
    assert v["b"] == [5, 6, 7, 8]
    lb = rc.load_balanced_view()
    assert lb.apply_sync(max, 1, 2) == 2
    ar = lb.map_async(lambda x: x * x, range(2000))
    assert len(ar) == 2000
    assert ar.get() == [x * x for x in range(2000)]
    assert v.map_sync(lambda x: -x, range(101)) == [-x for x in range(101)]
    assert isinstance(ar, ipp.AsyncMapResult)

"""Sends of a tree of schedulers: the formula, its count, its optimum."""

import math

import pytest
from broadleaf import plan
from hypothesis import given, settings
from hypothesis import strategies as st

ENGINES = st.integers(1, 3000)
COSTS = st.floats(0.05, 20)


def rounded(value):
    return float(f"{value:.3g}")


def test_table_for_100_engines():
    published = [102, 53, 30, 21.5, 23.25, 36.125, 66.5625]
    corrected = [101, 53, 30, 19.5, 15.25, 14.125, 14.5625]
    assert [plan.published_sends(100, d) for d in range(7)] == published
    assert [plan.smooth_sends(100, 2, d) for d in range(7)] == corrected
    assert [plan.sends(100, 2, d) for d in range(7)] == [101, 53, 30, 20, 16, 15, 15]
    assert plan.best_depth(100).depth == 5


def test_best_for_1000_engines():
    fewest_published = min(range(12), key=lambda d: plan.published_sends(1000, d))
    assert (fewest_published, plan.published_sends(1000, 5)) == (5, 64.25)
    assert (plan.best_depth(1000, 2).depth, rounded(plan.smooth_sends(1000, 2, 8))) == (8, 20.9)
    assert (plan.best_depth(1000, 3).depth, rounded(plan.smooth_sends(1000, 3, 5))) == (5, 20.1)


def test_engines_at_a_leaf_of_the_best_tree():
    shares = {arity: 10**6 / arity ** plan.optimum_depth(10**6, arity) for arity in (2, 3, 4, 8)}
    assert {arity: round(share, 2) for arity, share in shares.items()} == {2: 2.89, 3: 2.73, 4: 2.89, 8: 3.85}


def test_two_and_four_branches_tie_behind_three():
    assert plan.min_sends(10**5, 2) == pytest.approx(plan.min_sends(10**5, 4))
    assert min(range(2, 20), key=lambda arity: plan.min_sends(10**5, arity)) == 3


def test_published_formula_is_lowest_at_the_square_root():
    assert plan.published_sends(1024, 5) == 1 + 2 * math.sqrt(1024)
    assert min(range(15), key=lambda d: plan.published_sends(1024, d)) == 5


@settings(deadline=None)
@given(ENGINES, st.integers(2, 7), st.integers(0, 4))
def test_counted_sends_and_messages_equal_the_formula(engines, arity, depth):
    tree = plan.Tree(engines, arity, depth)
    assert tree.serial_sends() == plan.sends(engines, arity, depth)
    assert tree.messages() == plan.messages(engines, arity, depth)


@pytest.mark.parametrize("engines", [1, 2, 7, 8, 9, 99, 100, 101, 1000])
@pytest.mark.parametrize("arity", [2, 3, 5])
def test_counted_sends_equal_the_formula_at_every_useful_depth(engines, arity):
    for depth in range(plan.best_depth(engines, arity).depth + 3):
        assert plan.Tree(engines, arity, depth).serial_sends() == plan.sends(engines, arity, depth)


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(2, 5), st.integers(0, 4))
def test_a_tree_tells_everyone_once_one_at_a_time(engines, arity, depth):
    tree = plan.Tree(engines, arity, depth)
    sends = list(tree.sends())
    receivers = [send.receiver for send in sends]
    assert len(receivers) == len(set(receivers)) == tree.schedulers + engines
    told = {send.receiver: send.arrives for send in sends}
    by_sender = {}
    for send in sends:
        by_sender.setdefault(send.sender, []).append(send.arrives)
    for sender, times in by_sender.items():
        start = told.get(sender, 0)
        assert times == list(range(start + 1, start + 1 + len(times)))
    shares = [len(tree.engines_of(leaf)) for leaf in range(tree.first_leaf, tree.schedulers)]
    assert len(shares) == tree.leaves
    assert max(shares) - min(shares) <= 1
    assert sorted(tree.arrivals()) == list(range(engines))


def test_a_tree_drawn_by_hand():
    tree = plan.Tree(5, arity=2, depth=1)
    assert [(s.sender, s.receiver, s.arrives) for s in tree.sends()] == [
        ("client", ("scheduler", 0), 1),
        (("scheduler", 0), ("scheduler", 1), 2),
        (("scheduler", 0), ("scheduler", 2), 3),
        (("scheduler", 1), ("engine", 0), 3),
        (("scheduler", 1), ("engine", 1), 4),
        (("scheduler", 2), ("engine", 2), 4),
        (("scheduler", 2), ("engine", 3), 5),
        (("scheduler", 2), ("engine", 4), 6),
    ]


def cost(engines, arity, depth, inner, leaf):
    return inner * (1 + arity * depth) + leaf * math.ceil(engines / arity**depth)


@settings(deadline=None)
@given(ENGINES, st.integers(2, 9), COSTS, COSTS)
def test_no_depth_is_better_than_the_best(engines, arity, inner, leaf):
    best = plan.best_depth(engines, arity, inner, leaf)
    minimum = min(cost(engines, arity, depth, inner, leaf) for depth in range(16))
    assert best.cost == pytest.approx(minimum)
    assert best.cost == pytest.approx(cost(engines, arity, best.depth, inner, leaf))
    assert best.sends == plan.sends(engines, arity, best.depth)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), COSTS, COSTS)
def test_no_arity_and_depth_are_better_than_the_best(engines, inner, leaf):
    minimum = min(cost(engines, k, d, inner, leaf) for k in range(2, max(3, engines + 2)) for d in range(10))
    assert plan.best_shape(engines, inner, leaf).cost == pytest.approx(minimum)


@given(st.integers(4, 10**6), st.integers(2, 9), COSTS, COSTS)
def test_the_real_optimum_is_the_lowest_point_of_the_curve(engines, arity, inner, leaf):
    def curve(depth):
        return inner * arity * depth + leaf * engines / arity**depth

    best = plan.optimum_depth(engines, arity, inner, leaf)
    grid = [step / 100 for step in range(2500)]
    assert curve(best) <= min(map(curve, grid)) * (1 + 1e-9)
    if inner == leaf and best > 0:
        assert plan.min_sends(engines, arity) == pytest.approx(plan.smooth_sends(engines, arity, best))


@pytest.mark.parametrize(("engines", "arity"), [(1, 2), (2, 2), (10, 2), (1000, 3), (12345, 8)])
def test_min_sends_are_those_at_the_optimum(engines, arity):
    depth = plan.optimum_depth(engines, arity)
    assert plan.min_sends(engines, arity) == pytest.approx(plan.smooth_sends(engines, arity, depth))


@given(st.integers(1, 5000))
def test_rounds_if_everyone_passes_it_on(engines):
    told, rounds = 1, 0
    while told < engines + 1:
        told, rounds = 2 * told, rounds + 1
    assert plan.binomial_rounds(engines) == rounds


def test_broadleaf_wakes_many_engines_of_a_host_together():
    assert [plan.broadcast_sends(n) for n in (1, 7, 8, 1000)] == [2, 8, 2, 2]
    assert [plan.host_sends(n) for n in (plan.LANE_ENGINES - 1, plan.LANE_ENGINES)] == [7, 1]
    assert (plan.broadcast_sends(64, hosts=16), plan.broadcast_messages(64, hosts=16)) == (1 + 16 + 4, 1 + 16 + 64)
    assert (plan.broadcast_sends(80, hosts=10), plan.broadcast_messages(80, hosts=10)) == (1 + 10 + 1, 1 + 10 + 10)


def test_hosts_with_fewer_engines_may_be_the_slower_ones():
    # Seven of the nine hosts have 8 engines, two have 7.
    assert plan.broadcast_sends(70, hosts=9) == 1 + 9 + 7
    assert plan.broadcast_messages(70, hosts=9) == 1 + 9 + 7 * 1 + 2 * 7


@given(st.integers(1, 3000), st.integers(0, 300))
def test_no_host_sends_more_messages_than_it_has_engines(engines, hosts):
    hosts = min(hosts, engines)
    sends, messages = plan.broadcast_sends(engines, hosts), plan.broadcast_messages(engines, hosts)
    assert 2 + hosts <= sends <= messages <= 1 + hosts + engines


def test_direct_view():
    assert (plan.direct_sends(100), plan.direct_messages(100)) == (100, 200)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "engines must be at least 1"), ((5, 1), "arity must be at least 2"), ((5, 2, -1), "depth must not be")],
)
def test_wrong_numbers_are_refused_by_name(arguments, message):
    for function in (plan.sends, plan.smooth_sends, plan.messages, plan.Tree):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


@pytest.mark.parametrize(("engines", "hosts"), [(0, 0), (4, -1), (4, 5)])
def test_hosts_without_engines_are_refused(engines, hosts):
    for function in (plan.broadcast_sends, plan.broadcast_messages):
        with pytest.raises(ValueError, match=r"engines must be|hosts must be from 0 to"):
            function(engines, hosts)


def test_costs_are_above_zero():
    with pytest.raises(ValueError, match="costs must be above 0"):
        plan.best_depth(10, inner_cost=0)

"""Transfer times between hosts against published models, and the choice."""

import math

import pytest
from broadleaf import plan
from broadleaf.plan import transfer
from hypothesis import given, settings
from hypothesis import strategies as st

GIB = 2**30
MIB = 2**20
LINK = plan.Link.measured(latency_us=100, gbit=10)
# 1 GiB at 10 Gb/s and 100 us: seconds by algorithm, and the chain's segment in MiB.
TABLE = {
    4: (3.44, 2.58, 0.89, 6.4, 1.76, 1.38, 0.89),
    16: (13.7, 4.30, 0.93, 2.9, 1.78, 1.62, 0.90),
    50: (43.0, 5.16, 0.99, 1.6, 1.79, 1.69, 0.90),
    256: (220, 7.73, 1.18, 0.7, 1.82, 1.74, 0.91),
    1000: (859, 8.59, 1.55, 0.35, 1.82, 1.82, 0.92),
}
LINKS = st.builds(plan.Link, st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-7))


@pytest.mark.parametrize("hosts", TABLE)
def test_one_gibibyte(hosts):
    flat, binomial, chain, segment_mib, binary, van_de_geijn, round_optimal = TABLE[hosts]
    found = {t.algorithm: t for t in plan.transfers(hosts, GIB, LINK, limits_bytes=None)}
    # The table's entries are rounded, the flat ones to three digits.
    assert found["flat"].seconds == pytest.approx(flat, rel=0.004)
    assert found["binomial"].seconds == pytest.approx(binomial, abs=0.006)
    assert found["chain"].seconds == pytest.approx(chain, abs=0.006)
    assert found["chain"].segment_bytes / MIB == pytest.approx(segment_mib, abs=0.06)
    segments = transfer.best_segments(transfer.kary_depth(hosts, 2) - 1, GIB, LINK, None)
    assert transfer.kary_time(hosts, GIB, LINK, segments, 2) == pytest.approx(binary, abs=0.006)
    assert found["scatter-allgather"].seconds == pytest.approx(van_de_geijn, abs=0.006)
    assert found["round-optimal"].seconds == pytest.approx(round_optimal, abs=0.006)
    assert GIB * LINK.seconds_per_byte == pytest.approx(0.86, abs=0.005)


@pytest.mark.parametrize(("hosts", "mib"), [(4, 0.5), (16, 1), (64, 4), (256, 8)])
def test_chain_overtakes_the_binomial_tree_where_the_reference_says(hosts, mib):
    def chain_wins(n_bytes):
        chain, binomial = plan.transfers(hosts, int(n_bytes), LINK, None, ("chain", "binomial"))
        return chain.seconds < binomial.seconds

    assert not chain_wins(mib * MIB / 2)
    assert chain_wins(mib * MIB * 2)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(0, 10**10), LINKS)
def test_every_transfer_takes_at_least_what_it_must(hosts, n_bytes, link):
    min_s = transfer.min_possible_time(hosts, n_bytes, link)
    for found in plan.transfers(hosts, n_bytes, link):
        # Scatter and gather counts log2 p as it is, without rounding up to whole messages.
        slack = link.latency_s if found.algorithm == "scatter-allgather" else 0
        assert found.seconds + slack >= min_s * (1 - 1e-12)
        assert found.segment_bytes == math.ceil(n_bytes / found.segments)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 5000), LINKS)
def test_no_number_of_segments_is_better_than_the_best(hosts, n_bytes, link):
    chain, kary, rounds = plan.transfers(hosts, n_bytes, link, None, ("chain", "k-ary", "round-optimal"))
    counts = range(1, max(1, n_bytes) + 1)
    assert chain.seconds <= min(transfer.chain_time(hosts, n_bytes, link, c) for c in counts) * (1 + 1e-9)
    assert rounds.seconds <= min(transfer.round_optimal_time(hosts, n_bytes, link, c) for c in counts) * (1 + 1e-9)
    assert kary.seconds <= min(transfer.kary_time(hosts, n_bytes, link, c, 2) for c in counts) * (1 + 1e-9)


@given(st.integers(2, 500), st.integers(10**6, 10**10), LINKS)
def test_the_chain_nears_its_closed_form(hosts, n_bytes, link):
    (chain,) = plan.transfers(hosts, n_bytes, link, None, ("chain",))
    closed = (math.sqrt(n_bytes * link.seconds_per_byte) + math.sqrt((hosts - 1) * link.latency_s)) ** 2
    assert chain.seconds >= closed * (1 - 1e-9)
    if chain.segments > 20:
        assert chain.seconds <= closed * 1.01


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 10**10), LINKS)
def test_the_choice_is_the_fastest_that_relays_can_run(hosts, n_bytes, link):
    chosen = plan.choose(hosts, n_bytes, link)
    assert chosen.seconds == min(t.seconds for t in plan.transfers(hosts, n_bytes, link, among=plan.RUNNABLE))
    smallest, largest = transfer.SEGMENT_LIMITS_BYTES
    if chosen.segments > 1:
        assert smallest <= chosen.segment_bytes <= largest


def test_choices():
    assert plan.choose(1, 100, LINK).algorithm == "flat"
    assert plan.choose(16, 1000, LINK).algorithm == "binomial"
    large = plan.choose(16, GIB, LINK)
    assert (large.algorithm, large.segment_bytes) == ("chain", pytest.approx(2.9 * MIB, rel=0.02))
    assert plan.choose(16, GIB, LINK, among=["binomial"]).algorithm == "binomial"


def test_the_limits_cost_a_slow_link_little():
    slow = plan.Link.measured(latency_us=100, gbit=1)
    for n_bytes in (10**3, 10**5, 10**6, 16 * 10**6, 64 * 10**6):
        assert plan.choose(16, n_bytes, slow).seconds <= 1.15 * plan.choose(16, n_bytes, slow, None).seconds


def test_a_link_without_latency_is_cut_as_finely_as_allowed():
    chain = plan.choose(4, GIB, plan.Link(0, 1e-9), among=["chain"])
    assert chain.segment_bytes == transfer.SEGMENT_LIMITS_BYTES[0]


def binomial_children(machine, machines):
    bits = machine & -machine if machine else 1 << machines.bit_length()
    return [machine + (1 << j) for j in range(bits.bit_length() - 1) if machine + (1 << j) < machines]


@given(st.integers(1, 600), st.integers(0, 10**6))
def test_bytes_of_a_binomial_tree_are_those_of_the_tree(hosts, n_bytes):
    children = [len(binomial_children(machine, hosts + 1)) for machine in range(hosts + 1)]
    found = plan.host_bytes("binomial", hosts, n_bytes)
    assert sum(children) == hosts
    assert found == plan.HostBytes(children[0] * n_bytes, n_bytes, max(children[1:]) * n_bytes, hosts * n_bytes)


@given(st.integers(1, 300), st.integers(2, 9))
def test_bytes_of_a_k_ary_tree_are_those_of_the_tree(hosts, arity):
    children = [0] * (hosts + 1)
    for machine in range(1, hosts + 1):
        children[(machine - 1) // arity] += 1
    found = plan.host_bytes("k-ary", hosts, 10, arity)
    assert found == plan.HostBytes(children[0] * 10, 10, max(children[1:]) * 10, hosts * 10)


def test_bytes_of_the_others():
    assert plan.host_bytes("flat", 16, 100) == plan.HostBytes(1600, 100, 0, 1600)
    assert plan.host_bytes("chain", 16, 100) == plan.HostBytes(100, 100, 100, 1600)
    assert plan.host_bytes("chain", 1, 100) == plan.HostBytes(100, 100, 0, 100)
    # Four machines, pieces of 25: four go down the tree, one of them twice, then three a machine round the ring.
    assert plan.host_bytes("scatter-allgather", 3, 100) == plan.HostBytes(150, 125, 100, 400)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan.choose(0, 1), "hosts must be at least 1"),
        (lambda: plan.choose(1, -1), "number of bytes must not be negative"),
        (lambda: plan.choose(1, 1, among=["ring"]), "unknown algorithm 'ring'"),
        (lambda: plan.choose(1, 1, among=[]), "no algorithm to choose from"),
        (lambda: plan.host_bytes("ring", 1, 1), "unknown algorithm 'ring'"),
        (lambda: plan.Link.measured(1, 0), "bandwidth must be above 0"),
        (lambda: plan.Link(-1, 1), "a link needs a latency"),
    ],
)
def test_wrong_numbers_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Constraints: the evaluator, the search, whether they agree, and which constraints they blame."""

import itertools

import numpy as np
import pytest
from broadleaf_lab.errors import ConstraintError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor

FACTORS = (
    Factor("a", "flag"),
    Factor("b", "flag"),
    Factor("py", "python", ("3.9", "3.12", "3.13t"), "3.12"),
    Factor("n", "config", (0, 4, 64), 0, "log2"),
    Factor("jit", "env", when="py >= '3.13'"),
    Factor("deep", "env", when="jit and n > 0"),
)
BASE = {f.name: f.default for f in FACTORS}


def everything(factors=FACTORS):
    return [
        dict(zip([f.name for f in factors], levels, strict=True))
        for levels in itertools.product(*(f.levels for f in factors))
    ]


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("not (a and b)", lambda c: not (c["a"] and c["b"])),
        ("not a or py == '3.13t'", lambda c: not c["a"] or c["py"] == "3.13t"),
        ("py in ('3.9', '3.12') or a", lambda c: c["py"] in ("3.9", "3.12") or c["a"]),
        ("n not in (4, 64)", lambda c: c["n"] == 0),
        ("py < '3.12'", lambda c: c["py"] == "3.9"),
        ("0 < n <= 64", lambda c: c["n"] in (4, 64)),
        ("a + b + n // 4 <= 1", lambda c: c["a"] + c["b"] + c["n"] // 4 <= 1),
        ("a != b", lambda c: c["a"] != c["b"]),
        ("n", lambda c: c["n"] != 0),
        ("a == True", lambda c: c["a"]),
        ("-n * 2 >= -8", lambda c: c["n"] <= 4),
        ("True", lambda c: True),
    ],
)
def test_expressions_mean_what_they_say_to_evaluator_and_search(text, truth):
    plain = tuple(Factor(f.name, f.kind, f.levels, f.default, f.scale) for f in FACTORS[:4])
    rules = Constraints(plain, {"rule": text})
    possible = [config for config in everything(plain) if truth(config)]
    for config in everything(plain):
        assert rules.allows(config) is bool(truth(config))
        for known in range(len(plain)):
            part = dict(list(config.items())[known:])
            found = rules.completed(part)
            assert (found is not None) is any(part.items() <= c.items() for c in possible)
            assert found is None or (part.items() <= found.items() and found in possible)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a and c", "no factor 'c'"),
        ("pyy == '3.9'", "did you mean 'py'"),
        ("py == '3.13'", "not a level of 'py'"),
        ("py in ('3.9', '4')", "not a level of 'py'"),
        ("py", "compare it with one of its levels"),
        ("__import__('os')", "neither true nor false"),
        ("a.b", "neither true nor false"),
        ("a and (lambda: 1)()", "neither true nor false"),
        ("n + 1", "neither true nor false"),
        ("n ** 2 > 1", "not allowed"),
        ("a is True", "not allowed"),
        ("py in 'x'", "levels in parentheses"),
        ("a and", "not an expression"),
        ("[x for x in (1,)] == 1", "not allowed"),
        ("n < 'x'", "cannot be compared with < or >"),
        ("py > 'x'", "cannot be compared with < or >"),
        ("py + 1 > 2", "cannot be computed"),
        ("1 // n > 2", "cannot be computed for n = 0"),
    ],
)
def test_what_is_no_constraint(text, says):
    with pytest.raises(ConstraintError, match="constraint 'rule'") as caught:
        Constraints(FACTORS, {"rule": text})
    assert says in str(caught.value)


def test_violated_constraints_are_named():
    rules = Constraints(FACTORS, {"one": "not (a and b)", "few": "n < 64 or not a"})
    assert rules.violated(BASE) == []
    assert rules.violated({**BASE, "a": True, "b": True, "n": 64}) == ["one", "few"]
    assert rules.violated({**BASE, "jit": True}) == ["when:jit"]


def test_nested_factors_are_at_their_default_where_they_do_not_exist():
    rules = Constraints(FACTORS, {})
    everything_on = {**BASE, "py": "3.13t", "n": 4, "jit": True, "deep": True}
    assert rules.allows(everything_on)
    assert rules.exists("deep", everything_on)
    assert rules.settle({**everything_on, "py": "3.12"}) == {**BASE, "n": 4}
    assert not rules.exists("jit", BASE)
    assert rules.exists("a", BASE)


def test_a_cycle_of_conditions_is_named():
    with pytest.raises(ConstraintError, match="circular") as caught:
        Constraints((Factor("a", "flag", when="b"), Factor("b", "flag", when="a")), {})
    assert caught.value.names == ("when:a", "when:b")


def test_contradicting_constraints_are_named_and_no_others():
    rules = Constraints(FACTORS, {"on": "a", "fine": "b or n >= 0", "off": "not a", "other": "not b or n == 0"})
    with pytest.raises(ConstraintError, match="contradict") as caught:
        rules.check()
    assert caught.value.names == ("on", "off")


def test_an_unreachable_level_and_the_constraints_to_blame_are_named():
    rules = Constraints(FACTORS, {"tie": "not a or b", "never": "not b", "fine": "n < 64 or not jit"})
    with pytest.raises(ConstraintError) as caught:
        rules.check()
    message = str(caught.value)
    assert "level 1 of 'a' can never be reached because of 'tie' and 'never'" in message
    assert "level 1 of 'b' can never be reached because of 'never'" in message
    assert "fine" not in message
    assert set(caught.value.names) == {"tie", "never"}


def test_a_baseline_that_is_not_possible_is_said_so():
    with pytest.raises(ConstraintError, match=r"the baseline.*violates 'some'") as caught:
        Constraints(FACTORS, {"some": "a or b"}).check()
    assert caught.value.names == ("some",)


def test_what_is_tied_together_is_searched_apart_from_the_rest():
    """With them it would take 2 ** 40 steps to see that the last two contradict each other."""
    factors = tuple(Factor(f"f{i}", "flag") for i in range(40))
    apart = {f"pair{i}": f"f{i} or f{i + 1} or not f{i}" for i in range(0, 38, 2)}
    with pytest.raises(ConstraintError, match="'on' and 'off' contradict"):
        Constraints(factors, {**apart, "on": "f38 and f39", "off": "not f39"}).check()


def test_a_search_without_end_is_refused():
    factors = tuple(Factor(f"f{i}", "flag") for i in range(40))
    total = " + ".join(factor.name for factor in factors)
    with pytest.raises(ConstraintError, match="tie too many factors together"):
        Constraints(factors, {"sum": f"({total}) * 2 == 41"}).check()


def test_possible_constraints_pass():
    Constraints(FACTORS, {"one": "not (a and b)", "few": "n < 64 or not a"}).check()


def test_samples_are_possible_and_reach_every_level():
    rules = Constraints(FACTORS, {"one": "not (a and b)", "few": "n < 64 or not a"})
    found = rules.sample(np.random.default_rng(1), 500)
    assert len(found) == 500
    assert all(rules.allows(config) for config in found)
    for factor in FACTORS:
        assert {config[factor.name] for config in found} == set(factor.levels)


def test_samples_of_a_needle_are_searched_for():
    factors = tuple(Factor(f"f{i}", "flag") for i in range(30))
    rules = Constraints(factors, {f"eq{i}": f"f{i} == f{i + 1}" for i in range(28)})
    found = rules.sample(np.random.default_rng(1), 12)
    assert all(rules.allows(config) for config in found)
    assert len({tuple(config.values()) for config in found}) == 4
    assert all(list(config) == [factor.name for factor in factors] for config in found)


def test_neighbours_differ_in_one_level_and_are_possible():
    rules = Constraints(FACTORS, {"one": "not (a and b)"})
    found = rules.neighbours({**BASE, "a": True})
    assert found == [
        BASE,
        {**BASE, "a": True, "py": "3.9"},
        {**BASE, "a": True, "py": "3.13t"},
        {**BASE, "a": True, "n": 4},
        {**BASE, "a": True, "n": 64},
    ]

"""Factors, their levels, and the names of configurations."""

import hashlib
import subprocess
import sys

import pytest
from broadleaf_lab.errors import DesignError, StudyFileError
from broadleaf_lab.spec.factors import Factor, baseline, changed, column_value, config_id, describe
from broadleaf_lab.study import Study

LOG = Factor("log", "config", ("debug", "info", "off"), "debug")
PREFETCH = Factor("prefetch", "config", (0, 4, 64, 1024), 4, "log2")
FAST = Factor("fast", "flag")


def test_kinds_of_levels():
    assert (FAST.is_bool, FAST.is_numeric, FAST.is_categorical) == (True, False, False)
    assert (LOG.is_bool, LOG.is_numeric, LOG.is_categorical) == (False, False, True)
    assert (PREFETCH.is_bool, PREFETCH.is_numeric, PREFETCH.is_categorical) == (False, True, False)
    assert [f.on for f in (FAST, LOG, PREFETCH)] == [True, "off", 1024]
    assert PREFETCH.others == (0, 64, 1024)


def test_the_treated_level_is_the_first_where_the_default_is_the_last():
    assert Factor("steal", "config", (False, True), True).on is False
    assert Factor("n", "argument", (1, 2, 8), 8, "log2").on == 1


@pytest.mark.parametrize(
    ("factor", "cell", "level"),
    [(FAST, "1", True), (FAST, "0", False), (FAST, 1, True), (FAST, "off", False), (LOG, "off", "off"),
     (PREFETCH, "64", 64), (PREFETCH, "64.0", 64), (PREFETCH, 16, 16)],
)  # fmt: skip
def test_cells_are_read_back(factor, cell, level):
    found = factor.parse(cell)
    assert found == level
    assert type(found) is type(level)


@pytest.mark.parametrize(("factor", "cell"), [(FAST, "2"), (LOG, "warning"), (PREFETCH, "many")])
def test_a_cell_that_is_no_level_is_refused(factor, cell):
    with pytest.raises(DesignError, match=f"{factor.name!r} has no level {cell!r}"):
        factor.parse(cell)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("f", "magic"), "unknown kind 'magic'"),
        (("f", "flag", (1,), 1), "at least two"),
        (("f", "flag", (1, True), 1), "at least two different"),
        (("f", "flag", (1, 2), 3), "is not one of its levels"),
        (("f", "flag", (False, True), 0), "is not one of its levels"),
        (("f", "flag", ("a", "b"), "a", "log2"), "needs levels that are numbers"),
        (("f", "flag", (-1, 2), 2, "log2"), "0 or more"),
    ],
)
def test_what_makes_no_factor(arguments, problem):
    with pytest.raises(DesignError, match=problem):
        Factor(*arguments)


def test_positions_on_a_logarithmic_scale_put_zero_one_step_below():
    assert [PREFETCH.position(level) for level in (4, 64, 1024)] == [2, 6, 10]
    assert PREFETCH.position(0) == -2
    assert Factor("x", "argument", (0, 5, 10), 0, "linear").position(5) == 5


def test_a_configuration_is_named_by_a_hash_of_its_levels():
    factors = (LOG, FAST)
    text = b'{"fast":1,"log":"off"}'
    expected = "c" + hashlib.sha256(text).hexdigest()[:10]
    assert config_id({"log": "off", "fast": True}, factors) == expected
    assert config_id({"fast": True, "log": "off"}, reversed(factors)) == expected
    assert config_id({"fast": True}, factors) == config_id({"fast": True, "log": "debug"}, factors) != expected


def test_a_configuration_in_words():
    factors = (LOG, FAST, Factor("steal", "config", (False, True), True))
    assert describe(baseline(factors), factors) == "baseline"
    config = {"log": "off", "fast": True, "steal": False}
    assert changed(config, factors) == config
    assert describe(config, factors) == "log=off, fast, steal=off"
    assert [column_value(level) for level in config.values()] == ["off", 1, 0]


def test_a_factor_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(StudyFileError, match="Did you mean 'prefetch'"):
        Study("s", factors=(LOG, PREFETCH)).factor("prefech")


def test_all_on_keeps_the_first_of_two_that_exclude_each_other():
    factors = (FAST, Factor("lazy", "flag"), Factor("jit", "flag", when="py"), Factor("py", "flag"))
    study = Study("s", factors=factors, constraints={"one": "not (fast and lazy)"})
    assert study.all_on == {"fast": True, "lazy": False, "jit": True, "py": True}


def test_a_study_in_code_keeps_its_function():
    study = Study("s", factors=(FAST,))

    @study.benchmark
    def bench(n_tasks):
        return n_tasks

    assert study.function is bench
    assert bench(3) == 3


def test_importing_the_laboratory_loads_the_standard_library_only():
    code = (
        "import sys, broadleaf_lab as lab; from broadleaf_lab import Study, Factor, Plan, Constraints; "
        "Study('s', factors=(Factor('a', 'flag'),)).rules().check(); "
        "print([m for m in ('numpy', 'pandas', 'z3', 'scipy', 'click', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"

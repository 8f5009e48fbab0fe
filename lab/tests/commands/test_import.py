"""Runs that others have made, in tables of their own, become a study; nothing here uses the laboratory to make them."""

import csv

import numpy as np
import pytest
from broadleaf_lab.cli import command as lab
from click.testing import CliRunner

pytest.importorskip("scipy")

from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.paths.path import path_vectors
from broadleaf_lab.study import Study

NAMES = ("cfg_no_init_logging", "src_submit_biglogs_remove", "affinity", "python313t-nogil", "cfg_encrypted")
SAVES = (0.35, 0.5, 0.9, 0.8, 1.02)


def call(*arguments):
    return CliRunner().invoke(lab, [str(argument) for argument in arguments])


def published(file, n=300, paths=12, seed=1, separator=";"):
    """A file as the published study describes its own: semicolons, a column of True and False per treatment, the time
    of the run and the cost of a task. The runs of `paths` orders of all treatments are among them, unmarked.
    """
    rng = np.random.default_rng(seed)
    on = [rng.integers(0, 2, len(NAMES)) for _ in range(n)]
    for _ in range(paths):
        at = rng.permutation(len(NAMES))
        on += [(at < step).astype(int) for step in range(len(NAMES) + 1)]
    order = rng.permutation(len(on))
    with file.open("w", newline="") as out:
        writer = csv.writer(out, delimiter=separator)
        writer.writerow([*NAMES, "unix_timestamp", "us_per_task", "hostname"])
        for place, index in enumerate(order):
            us = 1182 * np.prod(np.where(on[index], SAVES, 1.0)) * np.exp(0.03 * rng.standard_normal())
            writer.writerow([*("True" if v else "False" for v in on[index]), 1.7e9 + 60 * place, f"{us:.3f}", "lazy"])
    return file


def test_a_published_file_becomes_a_study(tmp_path):
    file = published(tmp_path / "runs.csv")
    done = call(
        "import", file, tmp_path / "seed", "--score", "us_per_task", "--time", "unix_timestamp", "--dialect", "seed"
    )
    assert done.exit_code == 0, done.output
    assert "372 runs with 5 factors" in done.output
    # What is missing is said by name.
    assert "hostname is not a factor: it is 'lazy' in all runs." in done.output
    assert "python313t-nogil is called python313t_nogil here." in done.output
    assert "No blocks" in done.output
    study = Study.load(tmp_path / "seed")
    assert [f.tier for f in study.factors] == [3, 4, 1, 1, 1]
    runs = frames.load(study.runs_path, study.factors)
    assert len(runs) == 372
    effects = {e.factor: e.ratio for e in study.fit().effects()}
    assert effects["cfg_no_init_logging"] == pytest.approx(0.35, rel=0.03)
    # Twelve orders were made; some more or fewer can be put together, none is marked.
    assert len(path_vectors(runs, study.factors).path_ids) >= 5
    done = call("analyse", tmp_path / "seed")
    assert done.exit_code == 0, done.output
    assert "cfg_no_init_logging helps" in done.output


def test_what_is_exported_can_be_imported(tmp_path):
    assert call("import", published(tmp_path / "a.csv"), tmp_path / "one", "--score", "us_per_task", "--time",
                "unix_timestamp").exit_code == 0  # fmt: skip
    assert call("export", tmp_path / "one", "--dialect", "seed", "--to", tmp_path / "out").exit_code == 0
    done = call("import", tmp_path / "out" / "runs.csv", tmp_path / "two", "--score", "time_per_task_us", "--time",
                "started_unix")  # fmt: skip
    assert done.exit_code == 0, done.output
    one, two = (Study.load(tmp_path / name) for name in ("one", "two"))
    assert [f.name for f in one.factors] == [f.name for f in two.factors]
    assert one.fit().coefficients == pytest.approx(two.fit().coefficients)


def test_any_table_numbers_words_and_gaps(tmp_path):
    rng = np.random.default_rng(3)
    lines = ["when,threads,mode,seconds,note"]
    for i in range(90):
        threads, mode = int(rng.choice([1, 2, 4])), str(rng.choice(["fast", "slow"]))
        seconds = 2.0 / threads * (1.5 if mode == "slow" else 1.0) * np.exp(0.02 * rng.standard_normal())
        lines.append(
            f"2025-09-23T10:{i // 60:02}:{i % 60:02},{threads},{mode},{'' if i == 5 else f'{seconds:.4f}'},n{i}"
        )
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    done = call("import", tmp_path / "t.csv", tmp_path / "s", "--score", "seconds", "--unit", "s", "--time", "when")
    assert done.exit_code == 0, done.output
    assert "note is not a factor: it has 90 different values." in done.output
    assert "1 of 90 runs have no seconds above 0: they count as failed." in done.output
    study = Study.load(tmp_path / "s")
    assert {f.name: f.levels for f in study.factors} == {"threads": (1, 2, 4), "mode": ("fast", "slow")}
    effects = {(e.factor, e.level): e.ratio for e in study.fit().effects()}
    assert effects["threads", 4] == pytest.approx(0.25, rel=0.05)
    assert study.runs()["y_us"].median() > 1e5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--score", "cost"), "no column 'cost'"),
        (("--score", "us_per_task", "--factors", "hostname"), "hostname cannot be"),
    ],
)
def test_what_cannot_be_read_is_named(options, said, tmp_path):
    done = call("import", published(tmp_path / "a.csv", n=20), tmp_path / "one", *options)
    assert done.exit_code == 1
    assert said in done.output
    assert not (tmp_path / "one" / "runs.csv").exists()

"""No two sentences of a report disagree, over generated studies. The sentences are read here word by word; the studies
are made with numpy alone.
"""

import csv
import os
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("scipy")

import truth
from broadleaf_lab.report.collect import collect
from broadleaf_lab.report.contents import contents_of
from broadleaf_lab.report.figures.registry import draw_all
from broadleaf_lab.report.recommend import recommend, sentences
from broadleaf_lab.study import Study

# As many as end in two minutes. Whoever changes the sentences looks at 500, in ten minutes:
# REPORTS=500 make test-statistics TEST_ARGS="-k many_reports"
# In parts: REPORTS_FROM=250 REPORTS=500 leaves out the first 250.
REPORTS = int(os.environ.get("REPORTS", "100"))
FIRST = int(os.environ.get("REPORTS_FROM", "0"))


def generated(folder, seed):
    """A study of some flags and a placebo, with pairs, sometimes three-ways and slow runs, of any number of runs."""
    rng = np.random.default_rng([12, seed])
    make = truth.threeway if seed % 4 == 3 else truth.flags
    known = make(rng, 5, int(rng.integers(0, 6)), float(rng.uniform(0.05, 0.5)))
    known = truth.Truth(
        {**known.levels, "placebo": (False, True)}, {**known.effects, "placebo": np.zeros(2)}, known.pairs, {},
        known.triples,
    )  # fmt: skip
    noise = truth.Noise(sd=float(rng.choice([0.01, 0.05])), outliers=float(rng.choice([0, 0.05])),
                        doubled=float(rng.choice([0, 0, 0.1])))  # fmt: skip
    rows = truth.runs(known, int(rng.choice([40, 64, 100, 200])), noise, rng, str(rng.choice(["random", "paths"])))
    return known, written(folder, known, rows)


def written(folder, known, rows):
    """The study of these runs."""
    env = 'set.env = {{ X{} = "1" }}\n'
    text = '[study]\nname = "made"\ncommand = ["true"]\n'
    for name in known.levels:
        text += f"[factors.{name}]\n" + ("set = { placebo = true }\n" if name == "placebo" else env.format(name))
    (folder / "study.toml").write_text(text)
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["run_id", "order_in_block", *rows[0]])
        writer.writeheader()
        writer.writerows({"run_id": f"r{i:06d}", "order_in_block": i, **row} for i, row in enumerate(rows))
    return Study.load(folder)


def named(text):
    """The names in `a, b and c`."""
    return {part for part in re.split(r", | and ", text) if part}


NAMES = r"((?:f\d|placebo)(?:(?:, | and )(?:f\d|placebo))*)"
PHRASES = {
    "helps": re.compile(rf"^{NAMES} helps?\.$"),
    "hinders": re.compile(rf"^{NAMES} hinders?\.$"),
    "no practical difference": re.compile(rf"^{NAMES} makes? no practical difference\.$"),
    "slows some runs": re.compile(rf"^{NAMES} slows? some runs\.$"),
    "unknown": re.compile(
        rf"^Not (?:yet known|to be known with \d+ times as many runs): {NAMES}(?: \(about \d+ more runs\))?\.$"
    ),
}


def said_of(study):
    """What a report says of each setting, as pairs of where it says so and a word; and all its sentences."""
    found = collect(study)
    figures = draw_all(found.evidence)
    page = contents_of(found, figures)
    said = {}
    for v in page.verdicts:
        said.setdefault(v.factor, set()).add(("verdict", v.word.split()[0] if v.word.startswith("depends") else v.word))
    for text in page.summary:
        for word, phrase in PHRASES.items():
            if match := phrase.match(text):
                for name in named(match[1]):
                    said.setdefault(name, set()).add(("summary", word))
        if match := re.search(rf"treatments each proven to help: {NAMES}\.$", text):
            for name in named(match[1]):
                said.setdefault(name, set()).add(("path", "can help"))
        if match := re.match(rf"^{NAMES} helps? on average over", text):
            for name in named(match[1]):
                said.setdefault(name, set()).add(("no step", "helps"))
    told = recommend(study)
    for name, level in told.config.items():
        if level:
            said.setdefault(name, set()).add(("recommended", "can help"))
    texts = [*page.summary, *(v.sentence for v in page.verdicts), *sentences(study, told)]
    texts += [getattr(figure, "title", None) or figure.reason for figure in figures]
    return said, texts, page


def disagreements(said, texts):
    """What cannot both be so."""
    found = []
    for name, words in said.items():
        plain = {word for _, word in words if word != "can help"}
        if len(plain) > 1:
            found.append((name, words))
        if any(word == "can help" for _, word in words) and not plain <= {"helps", "depends"}:
            found.append((name, words))
    whole = "\n".join(texts)
    sides = re.search(r"(\w+) depends on .*helps .* and hinders |(\w+) depends on .*hinders .* and helps ", whole)
    if sides and "No factor is known to help on one end" in whole:
        found.append(sides[0])
    if ("verdict", "unknown") in said.get("placebo", ()) and "does nothing, as expected" in whole:
        found.append("the placebo is unknown and does nothing")
    return found


def judged(folder, seed):
    """How many verdicts of help and harm a report gives, and how many of them are wrong."""
    folder.mkdir()
    known, study = generated(folder, seed)
    said, texts, _ = said_of(study)
    assert not disagreements(said, texts), seed
    wrong = claims = 0
    for name, words in said.items():
        effect = known.effect(name, True)
        for _, word in words & {("verdict", "helps"), ("verdict", "hinders")}:
            claims += 1
            wrong += (effect < 0) != (word == "helps") or effect == 0
    return wrong, claims


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(8))
def test_no_two_sentences_of_a_report_disagree(seed, tmp_path):
    judged(tmp_path / "study", seed)


WORKER = """
import pathlib, sys, test_agreement
folder, first, end, step = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
for seed in range(first, end, step):
    print(*test_agreement.judged(folder / str(seed), seed))
"""


@pytest.mark.statistics
@pytest.mark.timeout(3600)
def test_no_two_sentences_of_many_reports_disagree_and_few_are_wrong(tmp_path):
    step = os.cpu_count() or 1
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), *map(str, (FIRST + first, REPORTS, step))],
            env=path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for first in range(min(step, REPORTS - FIRST))
    ]  # fmt: skip
    outputs = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers), "\n".join(outputs)
    told = np.array([line.split() for output in outputs for line in output.splitlines()], dtype=int)
    assert len(told) == REPORTS - FIRST
    wrong, claims = told.sum(axis=0)
    assert claims > REPORTS - FIRST
    assert wrong <= 0.05 * claims


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [60, 100, 150, 250])
def test_a_study_that_was_stopped_says_how_many_more_runs_it_takes(count, tmp_path):
    rng = np.random.default_rng([77, count])
    made, _, noise, design = truth.scenarios()["paths-12x60"]
    study = written(tmp_path, made(rng), truth.runs(made(rng), count, noise, rng, design))
    found = collect(study)
    unknown = {v.name for v in found.known.verdicts if v.word == "unknown"}
    told = [text for text in contents_of(found, []).summary if text.startswith("Not ")]
    assert unknown, "nothing to say"
    assert all(re.search(r"\(about \d+ more runs\)\.$|with 10 times as many runs: ", text) for text in told), told
    names = {name for text in told for name in named(re.sub(r"^[^:]*: | \(about.*|\.$", "", text))}
    assert names == unknown or any("more" in name for name in names)
    few = [text for text in found.log.notes if text.startswith("Too few runs")]
    assert bool(few) == (count < 158), "2 runs for each of 79 parameters"
    assert all(f"({158 - count} more would do)" in text for text in few)


def test_what_disagrees_is_found():
    said = {"a": {("verdict", "unknown"), ("path", "can help")}, "b": {("verdict", "helps"), ("summary", "helps")}}
    assert len(disagreements(said, [])) == 1
    assert disagreements({}, ["a depends on b: helps with b off and hinders with b on.",
                              "No factor is known to help on one end of the speed range"])  # fmt: skip


def test_a_report_says_which_hunks_of_a_patch_are_dear(tmp_path):
    """Of five log lines, two cost time; made with numpy alone."""
    rng = np.random.default_rng(5)
    context = "\n".join(f" step({i})" for i in range(3))
    patch = "--- a/a.py\n+++ b/a.py\n" + "".join(
        f"@@ -{10 * n + 1},7 +{10 * n + 1},6 @@\n{context}\n-    log({n})\n{context}\n" for n in range(5)
    )
    (tmp_path / "biglogs.diff").write_text(patch)
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "lines"\ncommand = ["true"]\n[factors.line]\nlevels_from_patch = "biglogs.diff"\n'
    )
    saves = {"line_1": 0.0, "line_2": -0.5, "line_3": 0.0, "line_4": -0.2, "line_5": 0.0}
    known = truth.Truth(dict.fromkeys(saves, (False, True)), {n: np.array([-0.5, 0.5]) * v for n, v in saves.items()})
    rows = truth.runs(known, 120, truth.Noise(sd=0.01, block_sd=0.0), rng)
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["run_id", "order_in_block", *rows[0]])
        writer.writeheader()
        writer.writerows({"run_id": f"r{i:06d}", "order_in_block": i, **row} for i, row in enumerate(rows))
    _, texts, _ = said_of(Study.load(tmp_path))
    (said,) = [text for text in texts if "hunks of biglogs.diff" in text]
    dear = r"line_2 \(-39\.\d %: log\(1\)\) and line_4 \(-1[78]\.\d %: log\(3\)\) save time"
    others = r"none of the others saves more than [01]\.\d %"
    assert re.fullmatch(rf"Of the 5 hunks of biglogs\.diff, {dear}; {others}\.", said), said

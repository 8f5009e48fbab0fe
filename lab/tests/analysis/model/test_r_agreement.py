"""Acceptance 6: R's lm and prcomp, and SQL in sqlite3, read the same files and find the same numbers.

R comes from Debian's packages: the fixture installs r-base-core if it may (as root, with access to the package index),
and otherwise skips the tests that need it, with the reason.
"""

import shutil
import subprocess

import numpy as np
import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.pairs import deltas as tables
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.analysis.paths.pca import pca
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.report.collect import collect
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.imported import import_runs
from broadleaf_lab.spec.runs import RunsFile, read_runs
from broadleaf_lab.study import Study
from debian_layer import LayerUnavailable, in_layer, layer
from synthetic.system import SyntheticSystem, seedlike, simulate

pytestmark = pytest.mark.statistics

FACTORS = (
    Factor("cfg_log", "config", ("debug", "warning", "off"), "debug"),
    Factor("src_lazy", "patch"),
    Factor("cfg_encrypt", "config", (True, False), True),
    Factor("prefetch", "config", (1, 4, 16), 1, scale="log2"),
    Factor("placebo", "placebo"),
)
SYSTEM = SyntheticSystem(
    FACTORS,
    800.0,
    {
        "cfg_log": {"warning": -0.3, "off": -0.5},
        "src_lazy": -0.2,
        "cfg_encrypt": {False: -0.1},
        "prefetch": {4: -0.2, 16: -0.1},
    },
    {("cfg_log", "src_lazy"): 0.15},
)

# The report's R script draws figures; this one fits the same model independently: R's own factors, its own contrasts
# for the categories, its own products.
SCRIPT = r"""
runs <- read.csv(commandArgs(TRUE)[1])
runs <- runs[runs$status == "ok", ]
runs$log_off <- (runs$cfg_log == "off") - 1/3
runs$log_warning <- (runs$cfg_log == "warning") - 1/3
runs$lazy <- runs$src_lazy - 1/2
# Its default is on: the effect is that of switching it off.
runs$plain <- 1/2 - runs$cfg_encrypt
runs$four <- (runs$prefetch == 4) - 1/3
runs$sixteen <- (runs$prefetch == 16) - 1/3
runs$placebo <- runs$placebo - 1/2
main <- lm(log(time_per_task_us) ~ log_warning + log_off + lazy + plain + four + sixteen + placebo
           + factor(block), runs)
pairs <- lm(log(time_per_task_us) ~ (log_warning + log_off + lazy + plain + four + sixteen + placebo)^2
            - log_warning:log_off - four:sixteen + factor(block), runs)
show <- function(kind, model) {
  found <- coef(summary(model))[, 1]
  for (name in names(found)) cat(kind, name, sprintf("%.17g", found[name]), "\n")
}
show("main", main)
show("pairs", pairs)
vectors <- read.csv(commandArgs(TRUE)[2])
for (sdev in prcomp(vectors[, -1])$sdev) cat("sdev", "-", sprintf("%.17g", sdev), "\n")
"""
NAMES = {
    "cfg_log[warning]": "log_warning", "cfg_log[off]": "log_off", "src_lazy": "lazy", "cfg_encrypt": "plain",
    "prefetch[4]": "four", "prefetch[16]": "sixteen", "placebo": "placebo",
}  # fmt: skip


@pytest.fixture(scope="module")
def rscript(study):
    """The command line of Rscript: this system's, or Debian's from a layer of this checkout's."""
    if (found := shutil.which("Rscript")) is not None:
        return [found]
    try:
        upper = layer("r-base-core")
    except LayerUnavailable as error:
        pytest.skip(f"R is not installed, and cannot be had: {error}")
    directory, _ = study
    return in_layer(upper, ["Rscript"], shared=directory)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The directory of a study with runs.csv and path_vectors.csv, one run of it failed, and its frame."""
    directory = tmp_path_factory.mktemp("study")
    plan = Plan.make(SYSTEM.study(kind="random", runs=160, paths=15, seed=4))
    rows = simulate(plan, SYSTEM, 4)
    rows[7] = {**rows[7], "status": "failed", "time_per_task_us": None, "error": 'it broke, "badly"'}
    with RunsFile(directory / "runs.csv", FACTORS) as file:
        for planned, row in zip(plan.rows, rows, strict=True):
            file.append(row, planned.config)
    frame = frames.load(directory / "runs.csv", FACTORS)
    paths.path_vectors(frame, FACTORS).frame.to_csv(directory / "path_vectors.csv", index=False)
    return directory, frame


@pytest.fixture(scope="module")
def by_r(rscript, study):
    directory, _ = study
    (directory / "check.R").write_text(SCRIPT)
    command = [*rscript, "--vanilla", "check.R", "runs.csv", "path_vectors.csv"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = {"main": {}, "pairs": {}, "sdev": []}
    for line in done.stdout.splitlines():
        kind, name, value = line.split()
        if kind == "sdev":
            found["sdev"].append(float(value))
        else:
            found[kind][name] = float(value)
    return found


def in_r(name):
    return ":".join(NAMES[part] for part in name.split(":"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["main", "pairs"])
def test_coefficients_are_those_of_lm(by_r, study, kind):
    _, frame = study
    made = fit(FACTORS, frame, pairs=kind == "pairs", drift=False, blocks="fixed", triples=False,
               robust=False)  # fmt: skip
    compared = 0
    for name, value in made.coefficients.items():
        if name == "mean" or name.startswith("block["):
            continue
        theirs = by_r[kind].get(in_r(name), by_r[kind].get(":".join(reversed(in_r(name).split(":")))))
        assert theirs is not None, name
        assert value == pytest.approx(theirs, abs=1e-8)
        compared += 1
    assert compared == (7 if kind == "main" else 7 + 19)


PUBLISHED = r"""
given <- commandArgs(TRUE)
runs <- read.csv(given[1], sep = given[2], check.names = FALSE)
us <- runs[[given[3]]]
at <- runs[[given[4]]]
names(runs) <- gsub("[^A-Za-z0-9_]", "_", names(runs))
x <- as.data.frame(lapply(runs[strsplit(given[5], ",")[[1]]], function(v) as.numeric(as.logical(v))))
span <- max(at) - min(at)
time <- data.frame(elapsed = (at - min(at)) / span)
if (span > 86400) time <- cbind(time, cos = cos(2 * pi * at / 86400), sin = sin(2 * pi * at / 86400))
main <- lm(us ~ ., cbind(us, x, time))
for (name in names(x)) cat("main", name, sprintf("%.17g", coef(main)[name]), "\n")
cat("main", "r2", sprintf("%.17g", summary(main)$r.squared), "\n")
pairs <- lm(reformulate(c(paste0("(", paste(names(x), collapse = "+"), ")^2"), names(time)), "us"), cbind(us, x, time))
cat("pairs", "r2", sprintf("%.17g", summary(pairs)$r.squared), "\n")
"""


def seedlike_runs(directory):
    """Runs of the published study's synthetic twin, as the laboratory writes them."""
    system = seedlike()
    plan = Plan.make(system.study(kind="random", runs=300, paths=10, seed=3))
    study = system.study(directory)
    with RunsFile(study.runs_path, system.factors) as file:
        for planned, row in zip(plan.rows, simulate(plan, system, 3), strict=True):
            file.append(row, planned.config)
    return study, ["runs.csv", ",", "time_per_task_us", "started_unix"]


def imported_runs(directory):
    """Runs of some days in a table with semicolons, made with numpy alone: R reads it as it is."""
    rng = np.random.default_rng(6)
    names = ("cfg_no_init_logging", "src_lazy", "affinity", "python313t-nogil")
    lines = [";".join([*names, "unix_timestamp", "us_per_task"])]
    for number in range(900):
        on = rng.integers(0, 2, len(names))
        us = 1182 * np.prod(np.where(on, (0.35, 0.5, 0.9, 1.2), 1.0)) * np.exp(0.03 * rng.standard_normal())
        lines.append(";".join([*("True" if v else "False" for v in on), f"{1.7e9 + 200 * number}", f"{us:.6f}"]))
    (directory / "published.csv").write_text("\n".join(lines) + "\n")
    import_runs(directory / "published.csv", directory / "imported", "us_per_task", "unix_timestamp")
    return Study.load(directory / "imported"), ["published.csv", ";", "us_per_task", "unix_timestamp"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("made", [seedlike_runs, imported_runs])
def test_the_published_figures_are_those_of_lm(rscript, study, made):
    """Figures 15 to 17: coefficients, and R squared of the points that are drawn."""
    directory = study[0] / made.__name__
    directory.mkdir()
    its, (file, *table) = made(directory)
    (study[0] / "published.R").write_text(PUBLISHED)
    found = collect(its)
    names = [f.name for f in found.factors]
    done = subprocess.run(
        [*rscript, "--vanilla", "published.R", f"{made.__name__}/{file}", *table, ",".join(names)],
        cwd=study[0], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = {(kind, name): float(value) for kind, name, value in map(str.split, done.stdout.splitlines())}
    ours = found.evidence.coefficients.set_index("name")["mean_us"]
    assert set(ours.index) == set(names)
    for name in names:
        assert ours[name] == pytest.approx(theirs["main", name], rel=1e-6)
    for kind, model in (("main", found.evidence.main_model), ("pairs", found.evidence.pair_model)):
        assert model.r_squared == pytest.approx(theirs[kind, "r2"], rel=1e-6)
        drawn = model.table
        rest = drawn["actual_us"] - drawn["predicted_us"]
        assert 1 - rest.var() / drawn["actual_us"].var() == pytest.approx(theirs[kind, "r2"], rel=1e-6)


@pytest.mark.timeout(600)
def test_standard_deviations_are_those_of_prcomp(by_r, study):
    _, frame = study
    ours = pca(paths.path_vectors(frame, FACTORS), draws=5).sdev
    assert len(by_r["sdev"]) == len(ours)
    assert np.max(np.abs(ours - np.array(by_r["sdev"]))) < 1e-8 * max(1.0, ours[0])


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 shell is not installed")
def test_mean_deltas_are_those_of_sql(study):
    """`.import` makes a table of a CSV file, and a join with itself finds every X and X + treatment."""
    directory, frame = study
    for factor in FACTORS:
        same = " and ".join(f"x.{f.name} = y.{f.name}" for f in FACTORS if f is not factor)
        default = factor.default if not isinstance(factor.default, bool) else int(factor.default)
        query = (
            f"select y.{factor.name}, avg(y.time_per_task_us - x.time_per_task_us), count(*) from runs x join runs y "
            f"on {same} where x.status = 'ok' and y.status = 'ok' and x.{factor.name} = '{default}' and "
            f"y.{factor.name} <> '{default}' group by 1 order by 1;"
        )
        done = subprocess.run(
            ["sqlite3", ":memory:", ".mode csv", ".import runs.csv runs", query],
            cwd=directory, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        theirs = {}
        for line in done.stdout.split():
            level, mean, n = line.replace('"', "").split(",")
            theirs[level] = (float(mean), int(n))
        means = tables.mean_deltas(frame, FACTORS, "cross", draws=2)
        ours = means[means["treatment"] == factor.name]
        assert {str(level) for level in ours["level_to"]} == set(theirs)
        for row in ours.to_dict("records"):
            mean, n = theirs[str(row["level_to"])]
            assert row["n_pairs"] == n
            assert row["mean_us"] == pytest.approx(mean, rel=1e-9)


def test_numbers_survive_the_file(study):
    directory, frame = study
    rows = [row for row in read_runs(directory / "runs.csv", FACTORS) if row["status"] == "ok"]
    assert sorted(row["time_per_task_us"] for row in rows) == sorted(frame["y_us"])

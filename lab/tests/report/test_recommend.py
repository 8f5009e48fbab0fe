"""`broadleaf-lab recommend`: what the runs prove, written into a program's own file without touching the rest."""

import json
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("scipy")

from broadleaf_lab.cli import command as lab
from broadleaf_lab.errors import RunError
from broadleaf_lab.report.recommend import keys, recommend, write
from broadleaf_lab.spec.runs import RunsFile
from broadleaf_lab.study import Study

STUDY = """
[study]
command = ["true"]
[factors.log]
set.config = "logging.level"
levels = ["debug", "off"]
tier = 3
loses = "the log"
[factors.prefetch]
set.config = "prefetch_max"
levels = [1, 64]
[factors.crash]
set.config = "risky"
[factors.pin]
set.wrapper = "taskset 1"
[factors.idle]
set.env = { IDLE = "1" }
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("recommend")
    (root / "study.toml").write_text(STUDY)
    made = Study.load(root)
    rng = np.random.default_rng(1)
    with RunsFile(made.runs_path, made.factors) as runs:
        for number in range(128):
            config = {f.name: f.levels[int(rng.integers(0, 2))] for f in made.factors}
            y = 100 * np.exp(
                -0.5 * (config["log"] == "off") - 0.2 * (config["prefetch"] == 64) - 0.9 * config["crash"]
                - 0.1 * config["pin"] + rng.normal(0, 0.02)
            )  # fmt: skip
            bad = config["crash"] and rng.random() < 0.5
            runs.append(
                {
                    "status": "failed" if bad else "ok", "error": "boom" if bad else "", "block": number // 16,
                    "time_per_task_us": None if bad else float(y), "started_unix": 4.0 * number, "config_id": "c",
                },
                config,
            )  # fmt: skip
    return made


def test_what_is_proven_is_recommended_and_what_fails_is_not(study):
    found = recommend(study)
    assert found.config == {"log": "off", "prefetch": 64, "crash": False, "pin": True, "idle": False}
    assert found.ratio[1] < np.exp(-0.8) < found.ratio[2]
    assert found.gives_up == ("log: the log",)
    said = CliRunner().invoke(lab, ["recommend", str(study.directory)]).stdout
    assert said.splitlines()[0].endswith(", without crash, which fails more.")
    assert "elsewhere: wrapper taskset 1" in said
    assert recommend(study, max_tier=2).config["log"] == "debug"


def test_a_toml_file_keeps_what_is_not_recommended(study, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('# mine\nprefetch_max = 2  # small\nother = [1,\n  2]\n\n[logging]\nlevel = "info"\nfile = "a"\n')
    done = CliRunner().invoke(lab, ["recommend", str(study.directory), "--write", str(file)])
    assert done.exit_code == 0, done.output
    text = file.read_text()
    assert tomllib.loads(text) == {
        "prefetch_max": 64, "other": [1, 2], "logging": {"level": "off", "file": "a"},
    }  # fmt: skip
    assert text.startswith("# mine\n")


def test_json_and_lines_and_new_files(study, tmp_path):
    config = recommend(study).config
    file = tmp_path / "app.json"
    file.write_text('{"logging": {"file": "a"}, "x": 1}')
    assert write(study, config, file) == ["wrapper taskset 1"]
    assert json.loads(file.read_text()) == {"logging": {"file": "a", "level": "off"}, "x": 1, "prefetch_max": 64}
    lines = tmp_path / "app.env"
    lines.write_text("HOME=/x\nexport BROADLEAF_PREFETCH_MAX=1\n")
    write(study, config, lines)
    assert lines.read_text().splitlines() == ["HOME=/x", "BROADLEAF_LOGGING_LEVEL=off", "BROADLEAF_PREFETCH_MAX=64"]
    write(study, config, tmp_path / "new.toml")
    assert tomllib.loads((tmp_path / "new.toml").read_text())["logging"] == {"level": "off"}
    assert keys(study, {**config, "idle": True})[0]["IDLE"] == "1"


def test_a_layout_that_cannot_be_changed_safely_is_left_alone(study, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('logging = { level = "info" }\n')
    with pytest.raises(RunError, match="by hand"):
        write(study, recommend(study).config, file)
    assert file.read_text() == 'logging = { level = "info" }\n'

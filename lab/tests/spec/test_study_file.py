"""Study files: what they say, and the errors for wrong ones."""

import pytest
from broadleaf_lab import Study, StudyFileError
from broadleaf_lab.spec.file import parse_duration_s

WHOLE = """
[study]
name = "small-tasks"
command = ["{python}", "-m", "perf", "--tasks", "{n_tasks}"]
score = "json:time_per_task_us"
direction = "min"
timeout_s = 60
rope_pct = 2.0
source = "../code"
[study.calibrate]
min_s = 0.25
[factors.cfg_log]
set.config = "logging.level"
levels = ["debug", "off"]
default = "off"
tier = 3
loses = "no debug logs"
[factors.src_lazy]
set.patch = "patches/lazy.diff"
tier = 2
[factors.cfg_prefetch]
set.config = "engine.prefetch"
levels = [0, 4, 64, 1024]
scale = "log2"
[factors.py]
set.python = { "3.12" = "python3.12", "3.13t" = "/opt/py313t/bin/python" }
[factors.py_jit]
set.env = { PYTHON_JIT = "1" }
when = "py == '3.13t'"
[factors.env_zone]
set.env = { near = { ZONE = "a" }, far = { ZONE = "b" } }
[factors.verbose]
set.config = "verbose"
set.values = { on = "yes", off = "no" }
[factors.placebo]
kind = "placebo"
[constraints]
no_far = "env_zone == 'near' or not src_lazy"
[design]
kind = "explicit"
paths = 3
seed = 7
budget = "90m"
replicates = 2
[[design.rows]]
cfg_log = "debug"
src_lazy = true
[[design.rows]]
cfg_prefetch = 64
"""


@pytest.fixture
def write(tmp_path):
    def place(text, name="study.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return place


def test_everything_a_file_says(write):
    path = write(WHOLE)
    study = Study.load(path)
    assert study == Study.load(path.parent)
    assert study.directory == path.parent
    assert (study.name, study.timeout_s, study.rope_pct, study.calibrate.min_s) == ("small-tasks", 60, 2, 0.25)
    assert study.settings == {"source": "../code"}
    assert {f.name: (f.kind, f.levels, f.default) for f in study.factors} == {
        "cfg_log": ("config", ("debug", "off"), "off"),
        "src_lazy": ("patch", (False, True), False),
        "cfg_prefetch": ("config", (0, 4, 64, 1024), 0),
        "py": ("python", ("3.12", "3.13t"), "3.12"),
        "py_jit": ("env", (False, True), False),
        "env_zone": ("env", ("near", "far"), "near"),
        "verbose": ("config", (False, True), False),
        "placebo": ("placebo", (False, True), False),
    }
    log = study.factor("cfg_log")
    assert (log.tier, log.loses, log.setting) == (3, "no debug logs", {"config": "logging.level"})
    assert study.factor("verbose").setting == {"config": "verbose", "values": {"on": "yes", "off": "no"}}
    assert study.factor("py_jit").when == "py == '3.13t'"
    design = study.design
    assert (design.kind, design.paths, design.seed, design.budget_s, design.replicates) == ("explicit", 3, 7, 5400, 2)
    assert design.rows == ({"cfg_log": "debug", "src_lazy": True}, {"cfg_prefetch": 64})


HEAD = '[study]\ncommand = ["x"]\n'
FLAG = HEAD + '[factors.a]\nset.flag = "-a"\n'


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("", "study.command", "either a command or a callable"),
        ('[study]\ncommand = ["x"]\ncallable = "m:f"\n', "study.command", "either a command or a callable"),
        ('[study]\ncommand = "x"\n', "study.command", "not a list of words"),
        ('[study]\ncallable = "m"\n', "study.callable", 'Write "module:function"'),
        (HEAD + 'scor = "x"\n', "study.scor", "Did you mean 'score'"),
        (HEAD + 'score = "x"\n', "study.score", 'Write "json:KEY"'),
        (HEAD + 'score = "regex:[0-9]+"\n', "study.score", "0 groups"),
        (HEAD + 'direction = "up"\n', "study.direction", "Choose one of min, max"),
        (HEAD + "timeout_s = 0\n", "study.timeout_s", "less than"),
        (HEAD + "[study.calibrate]\nmin_tasks = 5\nmax_tasks = 4\n", "study.calibrate.min_tasks", "more than"),
        (HEAD + "[factors.a]\n", "factors.a.set", "Write set.KIND"),
        (HEAD + '[factors.a]\nset.confg = "x"\n', "factors.a.set.confg", "Did you mean 'config'"),
        (HEAD + '[factors.a]\nset.config = "x"\nset.env = "y"\n', "factors.a.set", "not one setting"),
        (HEAD + '[factors.a]\nset.config = "x"\nlevels = [1]\n', "factors.a.levels", "two levels"),
        (FLAG + "levels = [1, 2]\ndefault = 3\n", "factors.a.default", "Choose one of 1, 2"),
        (FLAG + "levels = [true, false]\ndefault = 1\n", "factors.a.default", "Choose one of True, False"),
        (HEAD + '[factors.a]\nset.config = { u = "1" }\n', "factors.a.set.config", "at least two"),
        (HEAD + '[factors.a]\nset.config = { u = "1", v = "2" }\nlevels = ["u", "w"]\n', "factors.a.set.config", "'w'"),
        (HEAD + '[factors.a]\nset.python = "x"\n', "factors.a.levels", "needs levels"),
        (FLAG + 'tier = "x"\n', "factors.a.tier", "not a whole number"),
        (FLAG + 'scale = "log2"\n', "factors.a", "levels that are numbers"),
        (FLAG + 'when = "b"\n', "factor 'a', key 'when'", "no factor 'b'"),
        (HEAD + '[factors."a b"]\nset.flag = "x"\n', "factors.a b", "letters, digits"),
        (HEAD + '[factors.python]\nset.flag = "x"\n', "factors.python", "a column of runs.csv"),
        (HEAD + '[factors.lambda]\nset.flag = "x"\n', "factors.lambda", "a word of Python's"),
        (FLAG + '[constraints]\nc = "a and b"\n', "constraint 'c'", "no factor 'b'"),
        (FLAG + "[constraints]\nc = 1\n", "constraints.c", "in quotes"),
        (FLAG + '[design]\nkind = "resolution"\n', "design.kind", "Did you mean 'resolution5'"),
        (FLAG + '[design]\nbudget = "3 weeks"\n', "design.budget", '"60m"'),
        (FLAG + "[[design.rows]]\nb = 1\n", "design.rows[1].b", "unknown factor"),
        (FLAG + '[[design.rows]]\na = "u"\n', "design.rows[1].a", "has no level 'u'"),
        (FLAG + '[design]\nfactor = "b"\n', "design.factor", "no factor 'b'"),
        (HEAD + "[desing]\n", "desing", "Did you mean 'design'"),
        (HEAD + "x = [", "study.toml", "is not valid TOML"),
    ],
)
def test_an_error_names_the_file_the_key_and_what_to_write(write, text, where, says):
    with pytest.raises(StudyFileError) as caught:
        Study.load(write(text))
    message = str(caught.value)
    assert "study.toml" in message
    assert where in message
    assert says in message


def test_a_file_may_extend_another(write):
    write(WHOLE, "base.toml")
    path = write(
        '[study]\nextends = "base.toml"\nname = "more"\n[study.calibrate]\nmax_tasks = 9\n'
        '[factors]\nsrc_lazy = false\n[factors.cfg_log]\nset.flag = "-q"\n'
        '[constraints]\nno_far = false\n[design]\nkind = "auto"\nrows = []\n'
    )
    study = Study.load(path)
    assert study.name == "more"
    assert (study.calibrate.min_s, study.calibrate.max_tasks) == (0.25, 9)
    assert "src_lazy" not in [f.name for f in study.factors]
    assert study.factor("cfg_log").kind == "flag"
    assert study.constraints == {}
    assert (study.design.kind, study.design.seed) == ("auto", 7)


def test_a_cycle_of_files_is_noticed(write):
    write('[study]\nextends = "study.toml"\n', "other.toml")
    with pytest.raises(StudyFileError, match="extends itself"):
        Study.load(write('[study]\nextends = "other.toml"\n'))


def test_a_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(StudyFileError, match="lab init"):
        Study.load(tmp_path)


@pytest.mark.parametrize(("text", "seconds"), [(90, 90), ("90", 90), ("90s", 90), ("60m", 3600), ("1.5h", 5400)])
def test_durations(text, seconds):
    assert parse_duration_s(text, "here") == seconds


@pytest.mark.parametrize("text", [0, -1, True, "", "m", "3 weeks"])
def test_what_is_no_duration(text):
    with pytest.raises(StudyFileError, match="not a duration"):
        parse_duration_s(text, "here")

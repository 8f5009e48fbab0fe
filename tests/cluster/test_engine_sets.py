"""Options of engine sets, and the scripts made from them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import broadleaf as ipp
import pytest
from broadleaf.cluster.engine_sets import BlockRequest, find_engine_set, make_engine_set
from broadleaf.cluster.engine_sets.batch import clock_time, walltime_seconds
from broadleaf.cluster.join import tasks_of_this_node
from broadleaf.config import ConfigError
from broadleaf.errors import ClusterStartError
from broadleaf.openssh import parse_host


def request(n: int | None = None) -> BlockRequest:
    """A request of a cluster whose key is in the relays' order, and must be nowhere else."""
    return BlockRequest("lab", Path("/home/me/lab"), n, {"private_key": "SECRET"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", 0, 0)),
        ("a:16", ("a", 0, 16)),
        ("a:2222:16", ("a", 2222, 16)),
        ("me@a.example.org:3", ("me@a.example.org", 0, 3)),
        ("ssh://me@a:2222", ("me@a", 2222, 0)),
        ("me@[fe80::1]:2", ("me@fe80::1", 0, 2)),
    ],
)
def test_hosts(text, expected):
    host = parse_host(text)
    assert (host.destination, host.port, host.n) == expected


@pytest.mark.parametrize("text", ["", "-oProxyCommand=x", "a b", "a:x", "a:1:2:3", "@a", "me@-x"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ValueError, match="write it as"):
        ipp.SSH([text])


def test_engines_are_shared_out_to_hosts_that_do_not_say():
    blocks = ipp.SSH(["a:3", "b", "c"])._blocks(request(8))
    assert [(block.facts["host"], block.n_engines) for block in blocks] == [("a", 3), ("b", 3), ("c", 2)]
    assert [block.facts["host"] for block in ipp.SSH(["a", "b", "c"])._blocks(request(2))] == ["a", "b"]
    assert [block.n_engines for block in ipp.SSH(["a", "b:2"])._blocks(request())] == [None, 2]


def test_the_command_says_nothing_secret():
    script = ipp.SSH(["me@a:2222:4"], jump="gw", setup=["module load x"], wrap="apptainer exec i.sif").script(request())
    assert "-p 2222 -J gw -- me@a" in script
    assert "module load x" in script
    assert "exec apptainer exec i.sif" in script
    assert "SECRET" not in script


def directives(slurm: ipp.Slurm, n: int | None = None) -> list[str]:
    """What the script requests from Slurm, besides its name and output."""
    lines = [line for line in slurm.script(request(n)).splitlines() if line.startswith("#SBATCH ")]
    return [line.removeprefix("#SBATCH ") for line in lines[2:]]


def test_a_script_has_only_what_was_asked_for():
    assert directives(ipp.Slurm()) == []
    assert directives(ipp.Slurm(), 6) == ["--ntasks=6"]
    assert directives(ipp.Slurm(nodes=4), 10) == ["--nodes=4", "--ntasks-per-node=3"]
    assert directives(ipp.Slurm(nodes=3, array=True, engines_per_host=2)) == [
        "--array=0-2",
        "--nodes=1",
        "--ntasks-per-node=2",
    ]
    slurm = ipp.Slurm(walltime="2h", partition="p", account="a", sbatch=["--mem=1G"])
    assert directives(slurm) == ["--time=2:00:00", "--partition=p", "--account=a", "--mem=1G"]
    assert "SECRET" not in slurm.script(request())


@pytest.mark.parametrize(
    ("walltime", "seconds", "expected"),
    [
        ("90s", 90, "0:01:30"),
        ("30m", 1800, "0:30:00"),
        ("1h30m", 5400, "1:30:00"),
        ("1d", 86_400, "24:00:00"),
        ("1:00:30", 3630, "1:00:30"),
        ("1-12:00:00", 129_600, "36:00:00"),
        ("1-12", 129_600, "36:00:00"),
        (1800, 1800, "0:30:00"),
        (0.5, 1, "0:00:01"),
        ("1800", 1800, "0:30:00"),
        ("30:00", 0, "30:00"),
        ("UNLIMITED", 0, "UNLIMITED"),
        ("inf", 0, "inf"),
        ("", 0, ""),
    ],
)
def test_a_walltime_means_the_same_for_every_scheduler(walltime, seconds, expected):
    assert walltime_seconds(walltime) == seconds
    assert clock_time(walltime) == expected
    if seconds:
        assert f"--time={expected}" in directives(ipp.Slurm(walltime=walltime))
        assert f"-l h_rt={expected}\n" in ipp.SGE(walltime=walltime).script(request(2))


def test_jobs_know_when_they_end():
    assert "squeue -h -j" in ipp.Slurm().script(request())
    assert "date +%s) + 5400" in ipp.SGE(walltime="90m").script(request(2))
    assert "date" not in ipp.SGE().script(request(2))


@pytest.mark.parametrize("has_bash", [True, False])
def test_set_up_commands_run_in_a_login_shell_of_bash_if_there_is_one(has_bash, tmp_path):
    (tmp_path / ".bash_profile").write_text("module() { export LOADED=$1; }\n")
    for program in ["sh", "env", *(["bash"] if has_bash else [])]:
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    path = f"export PATH={shlex.quote(str(tmp_path))}"
    kind = ipp.SSH(["a"], setup=[path, "module load/gcc", "X='a b'"])
    done = subprocess.run(
        ["/bin/sh", "-c", kind.set_up('echo "$LOADED $X"')],
        capture_output=True, text=True, check=False, env={"HOME": str(tmp_path), "PATH": str(tmp_path)},
    )  # fmt: skip
    if has_bash:
        assert (done.stdout, done.returncode) == ("load/gcc a b\n", 0), done.stderr
    else:
        assert done.stdout == ""
        assert "set-up command failed with code 127: module load/gcc" in done.stderr


@pytest.mark.parametrize(("command", "code"), [("false", 1), ("exit 3", 3), (". /nowhere/at-all", None)])
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_set_up_command_that_fails_ends_the_start_with_its_text(command, code, shell, tmp_path):
    (tmp_path / "sh").symlink_to("/bin/sh")
    path = os.environ["PATH"] if shell == "bash" else str(tmp_path)
    for errors in ("stop", "warn"):
        kind = ipp.SSH(["a"], setup=[command], setup_errors=errors)
        done = subprocess.run(
            ["/bin/sh", "-c", kind.set_up("echo went on")],
            capture_output=True, text=True, check=False, env={"PATH": path, "HOME": str(tmp_path)},
        )  # fmt: skip
        goes_on = errors == "warn" and "exit" not in command and (shell == "bash" or not command.startswith("."))
        assert done.stdout == ("went on\n" if goes_on else "")
        if goes_on:
            assert done.stderr.endswith(f"set-up command failed with code 1: {command}\n")
        if errors == "stop":
            assert re.search(rf"set-up command failed with code \d+: {re.escape(command)}\n$", done.stderr), done.stderr
            assert done.returncode == (code or done.returncode) != 0
    with pytest.raises(ClusterStartError, match="must be 'stop' or 'warn'"):
        ipp.SSH(["a"], setup_errors="ignore").set_up("true")


def test_engines_of_a_block():
    assert ipp.Slurm(nodes=2, engines_per_host=4).block_engines(0) == 8
    assert ipp.Slurm().block_engines(3) is None
    assert ipp.SGE(slots=4, pe="mp").block_engines(0) == 4
    assert ipp.OnRay(hosts=2, cpus=3).block_engines(0) == 6
    assert ipp.MPI().block_engines(5) == 5
    for fixed in (ipp.SSH(["a"]), ipp.OnDask()):
        with pytest.raises(ClusterStartError, match="hosts can be released, but not added"):
            fixed.block_engines(0)


def test_tasks_of_a_node():
    told = {"BROADLEAF_TASKS_PER_NODE": "4(x2),3"}
    assert [tasks_of_this_node(told | {"SLURM_NODEID": str(node)}) for node in range(4)] == [4, 4, 3, 0]
    assert tasks_of_this_node({}) == 0


def test_options_come_from_tables_and_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path))
    (tmp_path / "config.toml").write_text('[sge]\nwalltime = 90\n[slurm]\npartition = "long"\nnodes = 2\n')
    assert make_engine_set("sge") == ipp.SGE(walltime=90)
    profile = tmp_path / "profiles" / "site"
    profile.mkdir(parents=True)
    (profile / "config.toml").write_text('engines = "slurm"\nlog_level = "off"\n[slurm]\nnodes = 3\n')
    cluster = ipp.Cluster(profile="site", engine_options={"engines_per_host": "2"})
    assert cluster.engines_from == ipp.Slurm(nodes=3, partition="long", engines_per_host=2)
    assert cluster.settings["listen"] == "0.0.0.0:0"
    assert ipp.Cluster(engines="slurm", nodes=5).engines_from == ipp.Slurm(nodes=5, partition="long")
    again = ipp.Cluster.from_dict(json.loads(json.dumps(cluster.to_dict())))
    assert again.to_dict() == json.loads(json.dumps(cluster.to_dict()))


def test_options_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"engine set 'slurm' has no option 'node' \(argument\); it has .*nodes"):
        make_engine_set("slurm", None, {"node": 2})
    (tmp_path / "config.toml").write_text('[slurm]\nnodes = "many"\n')
    with pytest.raises(ConfigError, match=r"'nodes' from .*config\.toml: expected a number"):
        make_engine_set("slurm")
    with pytest.raises(
        ValueError, match="unknown engine set 'cloud'; known: dask, local, lsf, mpi, pbs, psij, ray, sge"
    ):
        find_engine_set("cloud")
    with pytest.raises(ipp.BroadleafError, match="no hosts are specified for SSH"):
        ipp.Cluster(engines="ssh").start_cluster_sync()


def test_mpi_starts_a_module_that_reads_how_to_join_from_a_file():
    engines = ipp.MPI(mpiexec="srun --mpi=pmix", mpi_args="-N 2", python="/opt/p/bin/python", wrap="nice -n 5")
    assert engines.script(request(6)) == (
        "srun --mpi=pmix -N 2 -n 6 nice -n 5 /opt/p/bin/python -m broadleaf.mpi --connection /home/me/lab/engine.json "
        "--world mpi-0 --log /home/me/lab/block-mpi-0.log"
    )
    assert "SECRET" not in engines.script(request(6))
    with_setup = ipp.MPI(setup=["module load openmpi"], python="python3").script(request(2))
    assert re.search(
        r"^mpiexec -n 2 sh -c .*\nmodule load openmpi\n.*exec python3 -m broadleaf.mpi ", with_setup, re.DOTALL
    )


# Characters that a scheduler would take for something else


def slurm_in(directory: str, **options: Any) -> list[str]:
    """The directives of a job that finds its files in this directory."""
    script = ipp.Slurm(**options).script(BlockRequest("lab", Path(directory), 1, {}))
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/home/me", "--output=/home/me/block-slurm-%j.log"),
        ("/home/my files", '"--output=/home/my files/block-slurm-%j.log"'),
        ("/home/100%j", "--output=/home/100%%j/block-slurm-%j.log"),
        ("/home/it's", '"--output=/home/it\'s/block-slurm-%j.log"'),
        ('/home/"me"', r'"--output=/home/\"me\"/block-slurm-%j.log"'),
        ("/home/#1", '"--output=/home/#1/block-slurm-%j.log"'),
    ],
)
def test_slurm_finds_any_directory(directory, expected):
    assert slurm_in(directory)[1] == expected


def test_slurm_reads_a_value_as_one_word():
    values = {"partition": "my queue", "account": 'a"b', "walltime": "1-0 x"}
    assert slurm_in("/", **values)[3:] == ['"--time=1-0 x"', '"--partition=my queue"', r'"--account=a\"b"']
    lines = ["--comment=a b", "--mem 8G", '--comment="a b"', "--mem=8G --exclusive", "--mem=8G  # much", "-C a&b"]
    assert slurm_in("/", sbatch=lines)[3:] == ['"--comment=a b"', *lines[1:]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "a\nb"}, r"partition='a\\nb': Slurm directives cannot contain a line break here"),
        ({"account": "a\rb"}, r"account='a\\rb'"),
        ({"walltime": "1\n2"}, r"walltime='1\\n2'"),
        ({"sbatch": ["--mem=1G\nrm -rf ~"]}, r"the line '--mem=1G\\nrm -rf ~' in sbatch: .* a separate entry"),
    ],
)
def test_slurm_gets_no_line_that_is_none(options, said):
    with pytest.raises(ClusterStartError, match=said):
        slurm_in("/home/me", **options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({}, "set BROADLEAF_DIR to another one"), ({"via": "ssh:login", "shared_dir": "{}"}, "name .* with shared_dir=")],
)
@pytest.mark.parametrize(("directory", "found"), [("/a\nb", "a line break"), ("/a\\b", "a backslash")])
def test_slurm_gets_no_directory_that_it_would_not_find(directory, found, options, remedy):
    options = {name: value.format(directory) for name, value in options.items()}
    with pytest.raises(ClusterStartError, match=f"but paths in Slurm directives cannot contain {found}; {remedy}"):
        slurm_in(directory, **options)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("[1, 2]", [1, 2]),
        ("1,2", [1, 2]),
        ("1 2", [1, 2]),
        ([1, 2], [1, 2]),
        ("", []),
    ],
)
def test_lists_of_numbers_are_read_in_every_form(written, value, monkeypatch):
    assert made("list[int]", written, monkeypatch) == value
    assert made("list[float]", written, monkeypatch) == value
    assert made(list[int], written, monkeypatch) == value
    assert made("Sequence[int]", written, monkeypatch) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [('["a", "b c"]', ["a", "b c"]), ("a, 'b c'", ["a", "b c"]), ("[fe80::1],b", ["[fe80::1]", "b"]), (["a"], ["a"])],
)
def test_lists_of_text_are_read_in_every_form(written, value, monkeypatch):
    assert made("list[str]", written, monkeypatch) == value


@pytest.mark.parametrize(
    ("annotation", "written", "said"),
    [
        ("list[int]", "1,x", "expected a number, got 'x'"),
        ("list[int]", [1.5], "expected a whole number, got 1.5"),
        ("list[int]", 3, "expected a list of numbers, got 3"),
        ("list[str]", "[1, 2]", r"expected a list of strings, such as 'a, b' or \['a', 'b'\], got \[1, 2\]"),
        ("list[str]", [1, 2], r"expected a list of strings, such as 'a, b' or \['a', 'b'\], got \[1, 2\]"),
    ],
)
def test_lists_of_something_else_are_refused(annotation, written, said, monkeypatch):
    with pytest.raises(ConfigError, match=said):
        made(annotation, written, monkeypatch)


def made(annotation: Any, written: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The value of an option of that type, given so."""
    space = {"__annotations__": {"option": annotation}, "name": "own", "option": field(default_factory=list)}
    own = dataclass(type("Own", (ipp.Slurm,), space))
    monkeypatch.setattr("broadleaf.cluster.engine_sets.find_engine_set", lambda _name: own)
    return make_engine_set("own", None, {"option": written}).option  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "annotation", ["dict[str, int]", dict, Path, "pathlib.Path", "tuple[int, ...]", list[Path], Any]
)
def test_options_of_other_types_are_refused_where_the_class_is_defined(annotation):
    with pytest.raises(TypeError, match=r"option 'cores' of Own cannot have the type .*.*list\[int\]"):
        type("Own", (ipp.BatchSet,), {"__annotations__": {"cores": annotation}})


def test_what_is_no_option_may_have_any_type():
    annotations = {"title": ClassVar[dict], "found": "typing.ClassVar[dict[str, int]]", "_jobs": "dict[str, int]"}
    jobs = field(init=False, default_factory=dict)
    own = type("Own", (ipp.BatchSet,), {"__annotations__": annotations, "_jobs": jobs})
    assert "_jobs" in own.__annotations__


@pytest.mark.parametrize(
    "annotation", ["bool", "int | str", "str | float", "str | None", str | float, "Sequence[str]", int]
)
def test_options_of_these_types_are_taken(annotation):
    assert type("Own", (ipp.BatchSet,), {"__annotations__": {"cores": annotation}})

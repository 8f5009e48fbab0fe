"""Directories and files that another user made first, or could change: nothing in them is believed or run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from broadleaf import config
from broadleaf.cluster import package
from broadleaf.cluster.engine_sets.base import BlockRequest
from broadleaf.cluster.engine_sets.batch import LoginHost
from broadleaf.errors import ClusterStartError
from broadleaf.openssh import SSHHost
from broadleaf.private_files import make_private, open_private
from broadleaf.state.directories import ClusterFileError

OTHER = 64399
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can make directories of other users")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0, 0o022, 0o777], ids=oct)
def umask(request):
    """The umask of the process."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_private(umask, tmp_path):
    make_private(tmp_path / "a" / "b")
    os.close(open_private(tmp_path / "a" / "b" / "file", os.O_WRONLY))
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(tmp_path / "a" / "b" / "file")] == [
        0o700,
        0o700,
        0o600,
    ]


def test_what_is_ours_and_open_is_closed(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o666)
    make_private(tmp_path / "open")
    os.close(open_private(tmp_path / "file", os.O_WRONLY))
    assert (mode(tmp_path / "open"), mode(tmp_path / "file")) == (0o700, 0o600)


@AS_ROOT
def test_a_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "theirs" / "inside").mkdir(parents=True)
    os.chown(tmp_path / "theirs", OTHER, OTHER)
    with pytest.raises(PermissionError, match="theirs is not a directory that you own"):
        make_private(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="inside is in a directory whose contents another user can replace"):
        make_private(tmp_path / "theirs" / "inside")


def test_a_directory_that_all_users_may_replace_is_refused(tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    with pytest.raises(PermissionError, match="mine is in a directory whose contents another user can replace"):
        make_private(tmp_path / "all" / "mine")
    (tmp_path / "all").chmod(0o1777)  # like /tmp
    make_private(tmp_path / "all" / "mine")


# Hosts without Broadleaf


RECEIVE = """
import sys
{code}
print(package)
"""


def receive(cache: Path, *, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    """What a host does that is sent Broadleaf; the archive is sent whether it wants it or not."""
    content = package.archive()
    return subprocess.run(
        [sys.executable, "-c", f"import os; os.umask({umask})" + RECEIVE.format(code=package.receive_code())],
        input=b"%d\n" % len(content) + content,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("umask", [0, 0o777], ids=oct)
def test_a_host_keeps_its_package_where_only_we_can_write(tmp_path, umask):
    done = receive(tmp_path / "cache", umask=umask)
    assert done.returncode == 0, done.stderr
    *_, stored = done.stdout.decode().splitlines()
    assert mode(Path(stored)) == mode(tmp_path / "cache") == 0o700
    written = [path for path in Path(stored).rglob("*") if path.is_file()]
    assert {mode(path) for path in written} == {0o600}
    again = receive(tmp_path / "cache")
    assert package.HAS in again.stdout.decode()


@AS_ROOT
@pytest.mark.parametrize("made", ["cache", "cache/broadleaf", "cache/broadleaf/packages", "package"])
def test_a_host_runs_no_package_that_another_user_may_have_put_there(tmp_path, made):
    path = tmp_path / made if made != "package" else tmp_path / "cache" / "broadleaf" / "packages" / package.key()
    path.mkdir(parents=True)
    os.chown(path, OTHER, OTHER)
    done = receive(tmp_path / "cache")
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "Broadleaf cannot be copied to" in said
    assert "not a directory that you own" in said or "another user can replace" in said
    assert "set XDG_CACHE_HOME in setup=" in said
    assert package.HAS not in done.stdout.decode()


def test_a_host_may_have_its_cache_elsewhere(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cache" / "broadleaf").symlink_to(tmp_path / "scratch")
    done = receive(tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-1].startswith(f"{tmp_path}/scratch/packages/")


@AS_ROOT
def test_a_package_in_a_directory_that_hosts_share_must_be_ours(tmp_path):
    stored = package.keep(tmp_path / "packages")
    assert package.keep(tmp_path / "packages") == stored
    os.chown(stored, OTHER, OTHER)
    with pytest.raises(ClusterFileError, match="not a directory that you own; remove it"):
        package.keep(tmp_path / "packages")


def test_a_package_is_closed_at_any_umask(umask, tmp_path):
    stored = package.keep(tmp_path / "packages")
    assert {mode(path) for path in stored.rglob("*")} == {0o600, 0o700}


# Login hosts


class ThisHostAsLogin:
    """Stands for a login: runs commands here."""

    def __init__(self, home: Path) -> None:
        self.host = SSHHost("login", 0, 0)
        self._environment = os.environ | {"HOME": str(home)}

    def run(self, command: str, data: bytes = b"") -> tuple[int, bytes, str]:
        done = subprocess.run(
            ["sh", "-c", command], input=data, env=self._environment, capture_output=True, timeout=60, check=False
        )
        return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def login(tmp_path, monkeypatch):
    """A function that returns the login host with this `shared_dir`."""
    monkeypatch.setattr("broadleaf.cluster.engine_sets.batch.SSHMaster", lambda host: ThisHostAsLogin(tmp_path))
    return lambda shared_dir="": LoginHost(SSHHost("login", 0, 0), str(shared_dir))


REQUEST = BlockRequest("mine", Path("/nowhere"), 1, {})


def test_jobs_find_their_files_where_only_we_can_write(login, umask, tmp_path):
    host = login()
    order = host.directory(REQUEST) / "order.json"
    host.write(order, {"key": "secret"})
    host.write(order, {"key": "another"})
    kept = Path(host.keep_package())
    assert host.keep_package() == str(kept)
    assert order.read_text() == '{"key": "another"}'
    assert [mode(one) for one in (tmp_path / ".broadleaf", order.parent, order)] == [0o700, 0o700, 0o600]
    assert [mode(one) for one in (kept.parent, kept)] == [0o700, 0o700]
    assert (kept / "broadleaf" / "__init__.py").exists()
    assert list(kept.parent.iterdir()) == [kept]


def test_a_directory_that_is_named_stays_as_open_as_it_is(login, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    host = login(tmp_path / "mine")
    host.write(host.directory(REQUEST) / "order.json", {})
    assert (mode(tmp_path / "mine"), mode(host.directory(REQUEST))) == (0o755, 0o700)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o1777)  # root's, where all users have their directories
    if os.getuid() == 0:
        host = login(tmp_path / "scratch")
        host.write(host.directory(REQUEST) / "order.json", {})
        assert mode(host.directory(REQUEST)) == 0o700


@AS_ROOT
@pytest.mark.parametrize("default", [True, False])
def test_a_directory_of_another_user_gets_no_order(login, tmp_path, default):
    theirs = tmp_path / (".broadleaf" if default else "theirs")
    theirs.mkdir(mode=0o777)
    os.chown(theirs, OTHER, OTHER)
    with pytest.raises(ClusterStartError, match=r"no directory for jobs on login: .*use shared_dir= to name one"):
        login("" if default else theirs).directory(REQUEST)


def test_a_directory_that_all_users_may_change_gets_no_order(login, tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    with pytest.raises(ClusterStartError, match=r"another user may replace what is in .*/all"):
        login(tmp_path / "all").directory(REQUEST)


@AS_ROOT
@pytest.mark.parametrize("made", ["directory", "packages", "package"])
def test_what_another_user_made_inside_is_not_believed(login, tmp_path, made):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o1777)
    host = login(tmp_path / "scratch")
    order = host.directory(REQUEST) / "order.json"
    packages = tmp_path / "scratch" / "packages"
    path = {"directory": order.parent, "packages": packages, "package": packages / package.key()}[made]
    path.mkdir(parents=True)
    os.chown(path, OTHER, OTHER)
    with pytest.raises(ClusterStartError, match="is not a directory that you own"):
        if made == "directory":
            host.write(order, {"key": "secret"})
        else:
            host.keep_package()
    assert list(path.iterdir()) == []


# Configuration


@pytest.fixture
def own_config(tmp_path, monkeypatch):
    """Our own `config.toml`."""
    monkeypatch.setenv("BROADLEAF_DIR", str(tmp_path))
    file = tmp_path / "config.toml"
    file.write_text('engine_start = "spawn"\n[ssh]\nsetup = ["rm -rf ~"]\n')
    return file


def test_our_own_configuration_holds(own_config):
    assert config.resolve()["engine_start"] == "spawn"


@AS_ROOT
def test_another_users_configuration_is_refused(own_config):
    os.chown(own_config, OTHER, OTHER)
    for read in (config.resolve, lambda: config.tables("ssh")):
        with pytest.raises(config.ConfigError, match=f"user {OTHER}, who could use it to run commands as you"):
            read()


def test_a_configuration_that_all_users_may_change_is_refused(own_config):
    own_config.chmod(0o666)
    with pytest.raises(
        config.ConfigError, match=r"can be changed by all users.*: chmod o-w .*/config\.toml$"
    ) as raised:
        config.resolve()
    subprocess.run(str(raised.value).rpartition(": ")[2], shell=True, check=True)
    assert config.resolve()["engine_start"] == "spawn"

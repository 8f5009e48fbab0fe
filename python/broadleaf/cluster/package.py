"""Broadleaf itself as one archive, for hosts that do not have it: what an engine needs, and the code that stores it
there.

The archive contains this process's own files, from a wheel or a checkout, including the native module. A host stores it
in a directory that is named after its content, so that it is sent there only once.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
from collections.abc import Iterator
from pathlib import Path

from broadleaf.errors import ClusterStartError
from broadleaf.private_files import make_private, open_private
from broadleaf.state.directories import make_private_dir

# Other packages that engines import; `broadleaf` comes first.
_PACKAGES = ("broadleaf", "cloudpickle")

WANTS = "broadleaf: wants the package"
HAS = "broadleaf: has the package"
KEPT_DAYS = 30

# Runs on a host that may have no Broadleaf. It says whether it has the package; if not, it reads a line with the
# archive's size, and then the archive, from standard input. Packages that nobody has used for a while are removed.
# Everybody may have made these directories; whoever did could have put code there.
RECEIVE = """\
import io, os, shutil, tempfile, time, zipfile
{make_private}
# It may be a link to a place with more room.
top = os.path.realpath(
    os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "broadleaf"))
packages = os.path.join(top, "packages")
package = os.path.join(packages, "{key}")
mask = os.umask(0o077)
try:
    make_private(top)
    make_private(packages)
    if os.path.lexists(package):
        make_private(package)
        print("{has}", flush=True)
    else:
        print("{wants}", flush=True)
        size = int(sys.stdin.buffer.readline() or 0)
        archive = sys.stdin.buffer.read(size)
        if not size or len(archive) != size:
            sys.exit("the package did not arrive: %d of %d bytes" % (len(archive), size))
        making = tempfile.mkdtemp(dir=packages)
        try:
            zipfile.ZipFile(io.BytesIO(archive)).extractall(making)
            os.rename(making, package)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            if not os.path.isdir(package):  # another login was faster
                raise
        del archive  # engines are forked from this process
    os.utime(package)
    for other in os.scandir(packages):
        if other.stat().st_mtime < time.time() - {kept_s}:
            shutil.rmtree(other.path, ignore_errors=True)
except OSError as error:
    sys.exit("Broadleaf cannot be copied to %s: %s; set XDG_CACHE_HOME in setup= to a place with room"
             % (packages, error))
os.umask(mask)"""


def receive_code() -> str:
    """Python code that leaves the path of the package in the variable `package`."""
    import inspect

    texts = {"make_private": inspect.getsource(make_private), "has": HAS, "wants": WANTS}
    return RECEIVE.format(key=key(), kept_s=KEPT_DAYS * 86_400, **texts)


@functools.cache
def key() -> str:
    """The name of the package, by its content."""
    import hashlib  # loads libcrypto

    digest = hashlib.sha256()
    for name, path in _files():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:20]


@functools.cache
def archive() -> bytes:
    """The package, as a zip file."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target:
        for name, path in _files():
            # File times are omitted, so that the same content gives the same archive.
            target.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def keep(packages: Path) -> Path:
    """Writes the package into a directory below `packages` that hosts share, if it is not there; returns that
    directory.
    """
    package = packages / key()
    make_private_dir(packages)
    if package.is_dir():
        make_private_dir(package)
        os.utime(package)
        return package
    import shutil
    import tempfile

    making = Path(tempfile.mkdtemp(dir=packages))
    make_private_dir(making)
    try:
        for name, path in _files():
            make_private_dir((making / name).parent)
            with os.fdopen(open_private(making / name, os.O_WRONLY), "wb") as file:
                file.write(path.read_bytes())
        os.rename(making, package)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not package.is_dir():  # another process was faster
            raise
    return package


def _files() -> Iterator[tuple[str, Path]]:
    """Files of the package, with their names in it, in order."""
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ClusterStartError(f"ship=True needs the package {name!r} here, and it is not installed")
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                yield f"{name}/{path.relative_to(root).as_posix()}", path

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

from broadleaf.cluster.start_error import ClusterStartError
from broadleaf.cluster.state.run_dirs import make_private_dir

# Other packages that engines import; `broadleaf` comes first.
_PACKAGES = ("broadleaf", "cloudpickle")

WANTS = "broadleaf: wants the package"
HAS = "broadleaf: has the package"
KEPT_DAYS = 30

# Runs on a host that may have no Broadleaf. It says whether it has the package; if not, it reads a line with the
# archive's size, and then the archive, from standard input. Packages that nobody has used for a while are removed.
RECEIVE = """\
import io, os, shutil, tempfile, time, zipfile
packages = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "broadleaf", "packages")
package = os.path.join(packages, "{key}")
try:
    if os.path.isdir(package):
        print("{has}", flush=True)
    else:
        print("{wants}", flush=True)
        size = int(sys.stdin.buffer.readline() or 0)
        archive = sys.stdin.buffer.read(size)
        if not size or len(archive) != size:
            sys.exit("the package did not arrive: %d of %d bytes" % (len(archive), size))
        os.makedirs(packages, 0o700, True)
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
    sys.exit("Broadleaf cannot be stored in %s: %s; set XDG_CACHE_HOME in setup= to a place with room"
             % (packages, error))"""


def receive_code() -> str:
    """Python code that leaves the path of the package in the variable `package`."""
    return RECEIVE.format(key=key(), has=HAS, wants=WANTS, kept_s=KEPT_DAYS * 86_400)


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
    if package.is_dir():
        os.utime(package)
        return package
    import shutil
    import tempfile
    import zipfile

    make_private_dir(packages)
    making = tempfile.mkdtemp(dir=packages)
    try:
        with zipfile.ZipFile(io.BytesIO(archive())) as source:
            source.extractall(making)
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

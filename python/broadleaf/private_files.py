"""Files and directories that only this user can read and change, whatever the umask."""

from __future__ import annotations

import os

_MODE = 0o600


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file, which is created if it does not exist, and gives it mode 0600; returns the descriptor."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        if os.fstat(descriptor).st_mode & 0o777 != _MODE:
            os.fchmod(descriptor, _MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: str | os.PathLike[str]) -> None:
    """Makes a directory and its missing parents with mode 0700. If it exists, it must be this user's, and is closed to
    others. Raises `PermissionError`, without a number, if another user could change what it contains.

    Its text is also sent to hosts that have no Broadleaf, so it needs nothing else of this module.
    """
    import os
    import stat

    path = os.path.abspath(path)
    missing = []
    above = path
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue  # someone else is making it just now
        os.chmod(directory, 0o700)  # the umask may have taken away our own permissions
    me, found, parent = os.getuid(), os.lstat(path), os.stat(os.path.dirname(path))
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != me:
        raise PermissionError(f"{path} is not a directory that you own")
    # Where users are mapped, as in a container, root is shown as the last of these.
    all_may_write = parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX
    if all_may_write or parent.st_uid not in (0, me, 65534):
        raise PermissionError(f"{path} is in a directory whose contents another user can replace")
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)

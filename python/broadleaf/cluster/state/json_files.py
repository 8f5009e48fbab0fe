"""The files of clusters that are objects in JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from broadleaf.errors import BroadleafError
from broadleaf.private_files import open_private


class ClusterFileError(BroadleafError):
    """A directory or file of a cluster is missing, does not belong to this user, or is not what it should be."""


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes `path` with mode 0600 so that a reader finds either the old content or the new, never a part."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(4).hex()}")
    descriptor = open_private(temporary, os.O_WRONLY | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass  # it has its name already
        raise


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file of ours. Raises `ClusterFileError`."""
    try:
        with open(path) as file:
            content = json.load(file)
    except FileNotFoundError:
        raise ClusterFileError(f"{path} does not exist; the cluster has stopped, or never ran") from None
    except (OSError, ValueError) as error:
        raise ClusterFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ClusterFileError(f"{path} is not a file of a cluster")
    return content

"""Folders in which many processes create and delete files at once: created durably, removed when empty."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from actorproc.errors import StoreRefused, UsageError

_TRIES = 20  # while others remove the folder between two attempts


def at_home(path: str | Path) -> Path:
    """The path with a leading '~' expanded.

    Raises:
        UsageError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{str(path)!r}: there is no user {Path(path).parts[0][1:]!r} with a home; write ~/FOLDER for your own, "
            "./~FOLDER for a folder of this name, or the whole path"
        ) from None


def place(move: Callable[[str, str], None], draft: str, path: str) -> None:
    """`move` the draft to its path, and create missing folders."""
    for _ in range(_TRIES):
        try:
            move(draft, path)
            return
        except FileNotFoundError:
            if not os.path.lexists(draft):
                raise  # the whole store was removed
            make_folders(os.path.dirname(path))
    move(draft, path)


def make_folders(folder: str) -> None:
    """Create `folder` and its parents durably."""
    for _ in range(_TRIES):
        try:
            _make_missing(folder)
            return
        except FileNotFoundError as error:
            latest = error
    parent = os.path.dirname(latest.filename)
    if os.path.isdir(parent):  # such as in /proc
        raise StoreRefused(
            f"{parent} takes no folders, so {latest.filename} cannot be made; give a place elsewhere"
        ) from None
    raise latest


def _make_missing(folder: str) -> None:
    """Raises FileNotFoundError if a parent was removed meanwhile."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        sync_folder(path)


def remove_empty(path: str, root: str) -> str:
    """Remove empty parents of `path` below `root`. Returns the topmost removed path."""
    while (folder := os.path.dirname(path)) != root:
        try:
            os.rmdir(folder)
        except OSError:  # usually because it is not empty
            break
        path = folder
    return path


def sync(handle: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fsync(handle)


def sync_folder(path: str) -> None:
    """Make the creation or removal of `path` durable."""
    while True:
        path = os.path.dirname(path)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # removed meanwhile, which the parent records
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return

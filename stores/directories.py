"""Folders that many processes write into and remove from at once: made durably, and removed when they are empty."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from actorproc.errors import StoreRefused, UsageError

_TRIES = 20  # to put a file into a folder that others remove, each time, as soon as it is made


def at_home(path: str | Path) -> Path:
    """The path, with '~' in front as the folder that it means.

    Raises:
        UsageError: it means none.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{str(path)!r}: there is no user {Path(path).parts[0][1:]!r} with a home; write ~/FOLDER for your own, "
            "./~FOLDER for a folder of this name, or the whole path"
        ) from None


def place(move: Callable[[str, str], None], draft: str, path: str) -> None:
    """`move` the draft to its path, into folders that are made if they are missing."""
    for _ in range(_TRIES):
        try:
            move(draft, path)
            return
        except FileNotFoundError:
            if not os.path.lexists(draft):
                raise  # all of it is gone, and is not to be made again
            make_folders(os.path.dirname(path))
    move(draft, path)


def make_folders(folder: str) -> None:
    """Make `folder` and those above it, durably."""
    for _ in range(_TRIES):
        try:
            _make_missing(folder)
            return
        except FileNotFoundError as error:
            latest = error
    parent = os.path.dirname(latest.filename)
    if os.path.isdir(parent):  # as in /proc; else others were faster each time
        raise StoreRefused(
            f"{parent} takes no folders, so {latest.filename} cannot be made; give a place elsewhere"
        ) from None
    raise latest


def _make_missing(folder: str) -> None:
    """Raises FileNotFoundError if one above was removed meanwhile."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        sync_folder(path)


def remove_empty(path: str, root: str) -> str:
    """Remove the folders above `path` that hold nothing more, below `root`. Returns the last path that is gone."""
    while (folder := os.path.dirname(path)) != root:
        try:
            os.rmdir(folder)
        except OSError:  # mostly since something is in it; whatever it is, nothing is lost if it stays
            break
        path = folder
    return path


def sync(handle: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fsync(handle)


def sync_folder(path: str) -> None:
    """Make the name at `path`, or that it is gone, as durable as its file."""
    while True:
        path = os.path.dirname(path)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # removed meanwhile with all that was in it: that shows in the one above
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return

"""Folders in which many processes create and delete files at once: created durably, removed when empty."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

_TRIES = 20  # while others remove the folders between two attempts


def move_into_place(move: Callable[[str, str], None], draft: str, path: str) -> None:
    """`move` the draft to its path, and create missing folders."""
    for _ in range(_TRIES):
        try:
            move(draft, path)
            return
        except FileNotFoundError:
            if not os.path.lexists(draft):
                raise  # the whole store was removed
            with suppress(FileNotFoundError):
                make_folders(os.path.dirname(path))
    move(draft, path)


def make_folders(folder: str) -> None:
    """Create `folder` and its parents durably. Raises FileNotFoundError if a parent was removed meanwhile."""
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

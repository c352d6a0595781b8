"""The hidden folder of a folder store: drafts, locks, and a clock file whose nonce identifies the store."""

from __future__ import annotations

import os
from contextlib import suppress

from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.runtime.clock import Clock
from actorproc.stores.directories import make_folders, sync, sync_folder

HIDDEN = ".actorproc"
_LEFTOVER = 3600.0  # seconds after which a draft was certainly abandoned


class FolderMetadata:
    """The hidden folder in `root`, which the first write creates. Its methods run in threads."""

    def __init__(self, root: str, clock: Clock) -> None:
        self.drafts = f"{root}/{HIDDEN}/drafts"
        self.locks = f"{root}/{HIDDEN}/locks"
        self.proven = False
        """The hidden folder exists, and the file system has the needed features."""
        self._root = root
        self._clock = clock
        self._time = f"{root}/{HIDDEN}/clock"
        self._met: bytes | None = None

    def meet(self) -> None:
        """Remember the identity of the folder, if it has one yet."""
        if self._met is None:
            self._met = self._name()

    def check(self) -> None:
        """Raises StoreUnavailable if the folder has another identity than before."""
        if self._met is not None and self._name() != self._met:
            raise StoreUnavailable(
                f"file://{self._root} is away: {HIDDEN}/clock in it is not what it was. If a mount is gone or the "
                "folder was moved, restore it, and work continues. If it was replaced on purpose, restart the "
                "processes "
                "that use it"
            )

    def prepare(self) -> None:
        """Check the folder before a write, and create it before the first.

        Raises:
            StoreUnavailable: see `check`.
            StoreRefused: the file system lacks a needed feature.
        """
        self.check()
        if self.proven:
            return
        make_folders(self.drafts)
        make_folders(self.locks)
        self._prove()
        self.meet()
        self._sweep()
        self.proven = True

    def now(self) -> float:
        """The file system's time in seconds since 1970."""
        try:
            os.utime(self._time)
            return os.stat(self._time).st_mtime
        except OSError:  # before the first write, or without the right to write
            return self._clock.wall()

    def _name(self) -> bytes | None:
        try:
            with open(self._time, "rb", buffering=0) as file:
                return file.readall() or b"%d" % os.fstat(file.fileno()).st_ino  # an empty one of an earlier version
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # a reader may lack the right
            return None

    def _prove(self) -> None:
        """Test the file system with a probe file, which becomes the clock file if there is none."""
        probe = f"{self.drafts}/{os.getpid()}-{self._clock.nonce()}"
        with open(probe, "xb", buffering=0) as file:
            try:
                file.write(self._clock.nonce().encode())
                # Still recent, so that others do not sweep it.
                odd = os.fstat(file.fileno()).st_mtime_ns // 1000 * 1000 + 789
                os.utime(file.fileno(), ns=(odd, odd))
                if os.fstat(file.fileno()).st_mtime_ns != odd:
                    raise StoreRefused(
                        f"file://{self._root}: this file system keeps no nanoseconds; use ext4, XFS, Btrfs or APFS"
                    )
                self._prove_links(probe)
                sync(file.fileno())
                with suppress(FileExistsError):
                    os.link(probe, self._time)
                    sync_folder(self._time)
                os.utime(self._time)  # a writer must be able to read the time
            finally:
                os.unlink(probe)

    def _prove_links(self, probe: str) -> None:
        try:
            os.link(probe, probe + "+")
        except OSError as error:
            raise StoreRefused(
                f"file://{self._root}: this file system has no hard links ({error.strerror}); use ext4, XFS, Btrfs "
                "or APFS"
            ) from error
        os.unlink(probe + "+")

    def _sweep(self) -> None:
        oldest = self.now() - _LEFTOVER
        with os.scandir(self.drafts) as drafts:
            for draft in drafts:
                with suppress(FileNotFoundError):
                    if draft.stat().st_mtime < oldest:
                        os.unlink(draft.path)

"""What a folder store keeps beside its objects: drafts, locks and a clock; and whether the folder is still the one that it was."""

from __future__ import annotations

import os
from contextlib import suppress

from actorproc.errors import StoreRefused, StoreUnavailable
from actorproc.runtime.clock import Clock
from actorproc.stores.directories import make_folders, sync, sync_folder

HIDDEN = ".actorproc"
_LEFTOVER = 3600.0  # seconds after which a draft is nobody's


class FolderMetadata:
    """The hidden folder in `root`, which comes into being with the first write. All of it is for threads.

    What its clock file holds, a nonce, tells the folder from another one at its path.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self.drafts = f"{root}/{HIDDEN}/drafts"
        self.locks = f"{root}/{HIDDEN}/locks"
        self.proven = False
        """It is there, and the file system can do what is needed."""
        self._root = root
        self._clock = clock
        self._time = f"{root}/{HIDDEN}/clock"
        self._met: bytes | None = None

    def meet(self) -> None:
        """Remember this folder, if it is one already."""
        if self._met is None:
            self._met = self._name()

    def check(self) -> None:
        """Raises StoreUnavailable: the folder is not the one that was met."""
        if self._met is not None and self._name() != self._met:
            raise StoreUnavailable(
                f"file://{self._root} is away: {HIDDEN}/clock in it is not what it was. If a mount is gone or the "
                "folder was moved, it goes on when that is back; if it was removed on purpose, or is there and this stays, start "
                "anew what uses it"
            )

    def prepare(self) -> None:
        """Before each write.

        Raises:
            StoreUnavailable: see `check`.
            StoreRefused: the file system lacks something.
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
        """The file system's time, in seconds since 1970."""
        try:
            os.utime(self._time)
            return os.stat(self._time).st_mtime
        except OSError:  # nothing was ever written here, or this process may only read
            return self._clock.wall()

    def _name(self) -> bytes | None:
        try:
            with open(self._time, "rb", buffering=0) as file:
                return file.readall() or b"%d" % os.fstat(file.fileno()).st_ino  # it was made before it held anything
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # who only reads need not see it
            return None

    def _prove(self) -> None:
        """The probe becomes the clock, if there is none."""
        probe = f"{self.drafts}/{os.getpid()}-{self._clock.nonce()}"
        with open(probe, "xb", buffering=0) as file:
            try:
                file.write(self._clock.nonce().encode())
                odd = os.fstat(file.fileno()).st_mtime_ns // 1000 * 1000 + 789  # recent still: others may be sweeping
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
                os.utime(self._time)  # who writes must be able to ask for the time
            finally:
                os.unlink(probe)

    def _prove_links(self, probe: str) -> None:
        try:
            os.link(probe, probe + "+")
        except OSError as error:
            raise StoreRefused(
                f"file://{self._root}: this file system has no hard links ({error.strerror}); use ext4, XFS, Btrfs or APFS"
            ) from error
        os.unlink(probe + "+")

    def _sweep(self) -> None:
        oldest = self.now() - _LEFTOVER
        with os.scandir(self.drafts) as drafts:
            for draft in drafts:
                with suppress(FileNotFoundError):
                    if draft.stat().st_mtime < oldest:
                        os.unlink(draft.path)

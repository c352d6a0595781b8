"""Objects as files under a folder of a POSIX file system; keys are paths. Safe among processes that share the folder.

How each promise is kept:

create-if-absent
    The body is written and synced as a draft, then linked to its key. `link` fails if the name is taken, and readers
    never see a partial file.
match
    Writes and deletes of one key exclude each other by `flock` on one of a fixed number of lock files. The lock covers
    only the comparison and the rename, so a stopped process hardly ever holds one. If it does, others retry until their
    deadline instead of hanging.
tag
    Time of modification, inode and size from `stat`, so a listing opens no file. The digits of the time below the
    millisecond are a nonce, and a file always gets a later time than the one that it replaces. So no two versions of a
    key share a tag, however fast they follow each other.
folders
    Created with the first file in them and removed with the last. A writer that finds its folder removed creates it
    again.
durable
    A write returns when the file and the folders changed for it are synced, unless it is `fleeting`. (Concurrent syncs
    share a commit of the file system's journal, so grouping them here would gain nothing.)
away
    A missing mount or a moved folder is not an empty store: objects written below the mount point would be hidden when
    the mount comes back, and a number would be used twice. So after the first access the store is unavailable while the
    nonce in its hidden clock file is missing.
hanging
    A disk that does not answer blocks the thread that uses it. A reader gives up at its deadline; the thread stays
    counted until it ends, so their number is bounded. A write that has begun is awaited, because its outcome must be
    known (except by a process that ends, as after a kill).
ages
    Times are the file system's own, also in `Listing.now`; the clocks of hosts are not used. A network folder must be
    consistent: NFS caches names and attributes unless mounted `noac,lookupcache=none`.

All other files are in the hidden folder `.actorproc`. A killed writer leaves its draft there, and a later one deletes
it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from stat import S_ISREG
from typing import Any, Self, TypeVar
from zlib import crc32

from actorproc.config.settings import Settings
from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.thread_pool import NoThread
from actorproc.storage.backend import LANE, Backend, Entry, Hadoop, Listing, NotModified, Stored
from actorproc.stores.directories import move_into_place, remove_empty, sync, sync_folder
from actorproc.stores.folder_metadata import HIDDEN, FolderMetadata

T = TypeVar("T")

_LOCKS = 256  # empty files; with more, fewer keys share one
_THREADS = 16
_LOCKED = Backoff(0.002, 0.03)  # between two attempts to take a lock
_MILLISECOND = 1_000_000  # nanoseconds

_FULL = {errno.ENOSPC, errno.EDQUOT}
_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_SHAPE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EILSEQ, errno.EXDEV}


class _Locked(Exception):
    """Another write holds the lock of this key."""


class FolderStore(Backend):
    """Objects below the folder `root`, which the first write creates."""

    def __init__(self, root: str | Path, *, clock: Clock = SYSTEM) -> None:
        self._root = os.path.abspath(os.path.expanduser(root))
        self.url = f"file://{self._root}"
        self._clock = clock
        self._ground = FolderMetadata(self._root, clock)
        self._threads = clock.thread_pool(_THREADS)
        self._sync: Callable[[int], None] = sync
        self._sync_folder: Callable[[str], None] = sync_folder

    def lane(self) -> FolderStore:
        lane = copy(self)
        lane._threads = self._clock.thread_pool(LANE)  # not the threads that other requests wait for
        return lane

    def fleeting(self) -> FolderStore:
        fleeting = copy(self)
        fleeting._sync = fleeting._sync_folder = _leave
        return fleeting

    @classmethod
    def of_url(cls, url: str, options: Any, *, settings: Settings, clock: Clock) -> Self:
        return cls(url.partition("://")[2], clock=clock)

    @property
    def route(self) -> None:
        return None

    @property
    def hadoop(self) -> Hadoop:
        return Hadoop(self.url)

    async def open(self) -> None:
        await self._do(self._look, abandon=True)

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._do(self._read, self._path(key), unless, tail, abandon=True)

    async def put(self, key: str, body: bytes) -> str:
        return await self._do_locked(self._write, self._path(key), body, None)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self._do(self._create, self._path(key), body)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self._do_locked(self._write, self._path(key), body, tag)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._do(self._list, prefix, after, limit, abandon=True)

    async def delete(self, key: str) -> None:
        await self._do_locked(self._remove, self._path(key))

    async def close(self) -> None:
        self._threads.close()

    async def _do(self, work: Callable[..., T], *args: object, abandon: bool = False) -> T:
        """`abandon`: a caller that gives up does not wait for the thread. For reads."""
        try:
            return await self._threads.run(self._guarded, work, *args, abandon=abandon)
        except NoThread as error:
            raise StoreUnavailable(f"{self.url}: no thread to ask it with: {error}") from error

    async def _do_locked(self, work: Callable[..., T], *args: object) -> T:
        """`_do`, and repeat it while another write holds the lock."""
        attempt = 0
        while True:
            try:
                return await self._do(work, *args)
            except _Locked:
                attempt += 1
                await self._clock.sleep(_LOCKED.delay(attempt, self._clock.random))

    # The methods below run in a thread.

    def _guarded(self, work: Callable[..., T], *args: object) -> T:
        try:
            return work(*args)
        except OSError as error:
            self._ground.proven = False  # check the folder again before the next write
            where = f"{self.url}: {error.strerror}" + (f": {error.filename}" if error.filename else "")
            if error.errno in _FULL:
                raise StoreUnavailable(
                    f"{where}: make room on this disk; writes go on as soon as there is some"
                ) from error
            if error.errno in _RIGHTS:
                raise StoreRefused(f"{where}: user {os.geteuid()} must be able to read and write there") from error
            if error.errno in _SHAPE:
                raise StoreRefused(f"{where}: this key cannot be a file beside the ones that are there") from error
            raise StoreUnavailable(where) from error

    def _path(self, key: str) -> str:
        if not _fits(key):
            raise UsageError(
                f"{self.url}: {key!r} cannot name a file: no part may be empty, '.' or '..', nor the first {HIDDEN!r}"
            )
        return f"{self._root}/{key}"

    def _look(self) -> None:
        try:
            with suppress(FileNotFoundError), os.scandir(self._root):
                pass
        except NotADirectoryError:
            raise UsageError(f"{self.url} is a file, or lies below one; give a folder") from None
        self._ground.meet()

    def _read(self, path: str, unless: str | None, tail: int | None) -> Stored | None:
        try:
            with open(path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                tag = _tag(status)
                if tag == unless:
                    raise NotModified
                if tail is not None:
                    file.seek(max(0, status.st_size - tail))
                body = file.readall()
            self._ground.check()  # else this may be a file from below a missing mount
            return Stored(body, tag, status.st_size)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self._ground.check()
            return None

    def _create(self, path: str, body: bytes) -> str:
        if os.path.lexists(path):
            raise self._exists(path)  # saves writing a draft
        with self._draft(body) as draft:
            tag = _tag(os.stat(draft))
            try:
                move_into_place(os.link, draft, path)
            except FileExistsError:
                raise self._exists(path) from None
        self._settle_folder(path)
        return tag

    def _exists(self, path: str) -> Exception:
        self._ground.check()
        if os.path.isdir(path):
            return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return ConditionFailed(f"{self.url}: {path} exists")

    def _write(self, path: str, body: bytes, tag: str | None) -> str:
        if tag is not None:
            self._compare(path, tag)  # saves writing a draft; the check under the lock decides
        with self._draft(body) as draft, self._lock(path):
            replaced, status = self._compare(path, tag), os.stat(draft)
            if replaced is not None and replaced.st_mtime_ns >= status.st_mtime_ns:
                later = replaced.st_mtime_ns + 1
                os.utime(draft, ns=(later, later))
                status = os.stat(draft)
            move_into_place(os.rename, draft, path)
        self._settle_folder(path)
        return _tag(status)

    def _compare(self, path: str, tag: str | None) -> os.stat_result | None:
        status = _stat(path)
        found = None if status is None else _tag(status)
        if tag is not None and found != tag:
            self._ground.check()
            raise ConditionFailed(f"{self.url}: {path} is {found}, not {tag}")
        return status

    def _remove(self, path: str) -> None:
        if _stat(path) is None:
            self._ground.check()
            return
        with self._lock(path), suppress(FileNotFoundError):
            os.unlink(path)
            path = remove_empty(path, self._root)  # listings walk over folders, too
        self._settle_folder(path)

    def _settle_folder(self, path: str) -> None:
        """Make a change durable. The change was made, so a failure is a doubt, not a refusal."""
        try:
            self._sync_folder(path)
        except OSError as error:
            raise StoreUnavailable(
                f"{self.url}: {path} is changed, and its folder cannot be synced: {error}"
            ) from error

    @contextmanager
    def _draft(self, body: bytes) -> Iterator[str]:
        """Path of a durable file with this body, whose name is unique among processes. It is deleted if left there."""
        self._ground.prepare()
        path = f"{self._ground.drafts}/{os.getpid()}-{self._clock.nonce()}"
        with open(path, "xb", buffering=0) as file:
            try:
                handle = file.fileno()
                rest = memoryview(body)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                now = os.fstat(handle).st_mtime_ns
                modified = now - now % _MILLISECOND + self._clock.random.randrange(_MILLISECOND)
                os.utime(handle, ns=(modified, modified))
                self._sync(handle)
                yield path
            finally:
                with suppress(OSError):  # already renamed, or a later sweep deletes it
                    os.unlink(path)

    @contextmanager
    def _lock(self, path: str) -> Iterator[None]:
        self._ground.prepare()
        slot = crc32(path.removeprefix(self._root).encode()) % _LOCKS
        handle = os.open(f"{self._ground.locks}/{slot}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise _Locked from None
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may hold a copy of this handle
            os.close(handle)

    def _list(self, prefix: str, after: str, limit: int | None) -> Listing:
        now = self._ground.now()
        entries: list[Entry] = []
        base = prefix[: prefix.rfind("/") + 1]
        if not base or _fits(base[:-1]):
            for key, file in self._walk(base, prefix, after):
                if len(entries) == limit:
                    break
                with suppress(FileNotFoundError):  # deleted meanwhile
                    status = file.stat(follow_symlinks=False)
                    entries.append(Entry(key, _tag(status), status.st_size, status.st_mtime))
        self._ground.check()
        return Listing(entries, now)

    def _walk(self, base: str, prefix: str, after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Files in key order. A folder is sorted by its name with a trailing '/'."""
        found: list[tuple[str, os.DirEntry[str]]] = []
        try:
            with os.scandir(f"{self._root}/{base}") as items:
                for item in items:
                    key = base + item.name
                    if item.is_dir(follow_symlinks=False):
                        key += "/"
                        wanted = (key.startswith(prefix) or prefix.startswith(key)) and (
                            key > after or after.startswith(key)
                        )
                        if wanted and key != HIDDEN + "/":
                            found.append((key, item))
                    elif key > after and key.startswith(prefix) and item.is_file(follow_symlinks=False):
                        found.append((key, item))
        except (FileNotFoundError, NotADirectoryError):
            return
        found.sort(key=lambda pair: pair[0])
        for key, item in found:
            if key.endswith("/"):
                yield from self._walk(key, prefix, after)
            else:
                yield key, item


def _fits(key: str) -> bool:
    """Whether `key` is a path below the root and outside the hidden folder."""
    parts = key.split("/")
    return {"", ".", ".."}.isdisjoint(parts) and parts[0] != HIDDEN and "\0" not in key


def _leave(_: object) -> None:
    """Instead of a sync."""


def _tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _stat(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if S_ISREG(status.st_mode) else None

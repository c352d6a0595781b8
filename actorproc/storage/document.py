"""Stored JSON documents: typed, with a format number, and changed by compare-and-swap if they have several writers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from actorproc.errors import RESTORE, CorruptObject
from actorproc.storage.backend import NotModified, Stored
from actorproc.storage.store import Conflict, Store


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the JSON documents that we store. A subclass declares its fields as any `msgspec.Struct` does:

        class Checkpoint(Document, frozen=True):
            epoch: int
            cursor: Cursor
            ahead: bool = False     # added later: documents without it are still read

    Use `tuple[...]`, not `Sequence[...]`: JSON arrays of a Sequence become lists, and a read document would not equal
    the written one.

    Types are checked when a document is read, and `ValueError` or `TypeError` from `__post_init__` counts as corrupt.
    Fields that a class does not know are ignored, so a field may be dropped. A change that an older actorproc would
    misread needs a higher `newest_format_version`.
    """

    newest_format_version: ClassVar[int] = 1
    """The highest format that this class reads."""

    format_version: int = msgspec.field(default=1, name="version")
    put_id: str = ""
    """Makes each stored version of the document unique, as conditional writes need. Set by `SharedDocument`."""

    def to_json(self) -> bytes:
        """The document as JSON, with sorted keys."""
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_json(cls, key: str, body: bytes | str) -> Self:
        """Read the document that is stored under `key`.

        Raises:
            CorruptObject: it was changed by something else, or written by a newer actorproc.
        """
        try:
            found = msgspec.json.decode(body, type=_Format).version
            if found > cls.newest_format_version:
                raise CorruptObject(
                    key,
                    f"has format version {found}, and this actorproc reads up to {cls.newest_format_version}: "
                    "update actorproc here",
                )
            return msgspec.json.decode(body, type=cls)
        except (ValueError, RecursionError) as error:
            raise CorruptObject(key, f"is not a valid {cls.__name__} document ({error}); {RESTORE}") from None


class _Format(msgspec.Struct):
    version: int


D = TypeVar("D", bound=Document)


class SharedDocument(Generic[D]):
    """One document in the store that several writers change by compare-and-swap.

    It remembers the version that it read or wrote last, so an owner that writes repeatedly needs one request per write.
    Lost replies are settled by `Store`: a write is either known to be applied, or raises.

    Raises (every method):
        CorruptObject: the stored document is corrupt or newer than this actorproc.
        StoreError: the store failed. After StoreUnavailable a write may have been applied.
    """

    def __init__(self, store: Store, key: str, kind: type[D]) -> None:
        self.key = key
        self.current: D | None = None
        """The document as it was last read or written here; None if there is none, or nothing was read yet."""
        self._store = store
        self._kind = kind
        self._tag: str | None = None

    async def read(self) -> D | None:
        """Fetch the document, unless it is unchanged, and return it; None if there is none."""
        with suppress(NotModified):
            self._adopt(await self._store.get(self.key, unless=self._tag))
        return self.current

    async def swap(self, successor: D) -> D:
        """Replace `current` by `successor`, or create the document if `current` is None. Returns it with its put-id.

        Raises:
            Conflict: another writer was first; its document is attached as `stored`. `current` stays as it was, so
                every later swap is refused, too, until `read` accepts the other document.
        """
        signed = replace(successor, put_id=self._store.clock.nonce())
        self._tag = await self._store.write(self.key, signed.to_json(), self._tag)
        self.current = signed
        return signed

    async def change(self, change: Callable[[D | None], D | None]) -> D | None:
        """Read the document, write the successor by `change`, and repeat that while other writers are first.

        Args:
            change: gets the document, or None if there is none. It returns the successor; or the same document, or
                None, to write nothing. An exception ends the call.

        Returns:
            The document as it is stored now.
        """
        await self.read()
        while True:
            successor = change(self.current)
            if successor is None or successor == self.current:
                return self.current
            try:
                return await self.swap(successor)
            except Conflict as conflict:
                self._adopt(conflict.stored)

    def _adopt(self, stored: Stored | None) -> None:
        self.current = self._kind.from_json(self.key, stored.body) if stored else None
        self._tag = stored.tag if stored else None


MOST_NUMBER = 2**63 - 1
"""Limit of positions and file numbers: readers in other languages may have 64 bits for them."""


def whole_number(text: str) -> int | None:
    """The number that these digits spell; None if it is not one from 0 to `MOST_NUMBER`."""
    number = int(text) if text.isdecimal() and len(text) < 20 else -1
    return number if 0 <= number <= MOST_NUMBER else None

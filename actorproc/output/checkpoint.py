"""Checkpoints: how far a partition is, claimed and moved by compare-and-swap. One small document per partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from actorproc.errors import Fenced, StaleEpoch
from actorproc.records import Cursor
from actorproc.storage.document import check_types, document, to_document
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store, Stored

_TYPES = {
    "epoch": (int,),
    "number": (int,),
    "cursor": (list,),
    "totals": (dict,),
    "host": (str,),
    "time": (float, int),
    "put_id": (str,),
    "ahead": (bool,),
}
_TOTALS = dict.fromkeys(("records", "rows", "dead_letters", "skipped"), (int,))


@dataclass(frozen=True, slots=True)
class Totals:
    """What a partition has done since its first record."""

    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`number`: the output file to write next, as far as is known here: the walk goes on from it."""

    epoch: int
    number: int
    cursor: Cursor
    totals: Totals = field(default_factory=Totals)
    host: str = ""
    time: float = 0.0
    """When it was last moved (a claim moves nothing): seconds since 1970 by the host's clock, but never before a commit that
    it has passed."""
    put_id: str = ""
    ahead: bool = False
    """At most once: `cursor` is the end of a batch that the handler is just getting; what comes of it is not committed."""

    def to_json(self) -> bytes:
        return to_document({**asdict(self), "cursor": list(self.cursor)})

    @classmethod
    def from_json(cls, key: str, body: bytes) -> Self:
        with document(key, body, "checkpoint") as fields:
            fields.setdefault("ahead", False)  # of a version that did not say it
            check_types(fields, _TYPES)
            check_types(fields["totals"], _TOTALS)
            position, sequence = fields.pop("cursor")
            totals = Totals(**fields.pop("totals"))
            return cls(cursor=Cursor(str(position), int(sequence)), totals=totals, **fields)


class CheckpointKeeper:
    """The checkpoint of one partition in the hands of one owner.

    Between `claim` and the first refusal nobody else has moved it: the owner's put-id is in it.
    """

    def __init__(self, store: Store, layout: ProcessorLayout, partition: str, *, host: str, epoch: int) -> None:
        self._store = store
        self._key = layout.checkpoint(partition)
        self._host = host
        self._epoch = epoch
        self._tag = ""
        self.current = Checkpoint(epoch, 0, Cursor(""))

    async def claim(self, start: Callable[[], Awaitable[str]]) -> Checkpoint:
        """Put the own epoch into the checkpoint. From here on every earlier owner's write of it is refused.

        Args:
            start: asked for the position to begin at, if there is no checkpoint yet.

        Raises:
            Outranked: a later epoch is there.
        """
        while True:
            stored = await self._store.get(self._key)
            try:
                if stored is None:
                    self.current = self._signed(Checkpoint(self._epoch, 0, Cursor(await start())))
                    self._tag = await self._store.create(self._key, self.current.to_json())
                else:
                    found = Checkpoint.from_json(self._key, stored.body)
                    if found.epoch > self._epoch:
                        raise StaleEpoch(
                            self._key, found.epoch, f"epoch {found.epoch} of {found.host} is past ours, {self._epoch}"
                        )
                    self.current = self._signed(replace(found, ahead=False))  # nobody is at that batch any more
                    self._tag = await self._store.swap(self._key, self.current.to_json(), stored.tag)
            except Conflict:
                continue
            return self.current

    async def advance(self, number: int, cursor: Cursor, totals: Totals, time: float, *, ahead: bool = False) -> None:
        """Write how far we are at `time`; or, `ahead`, how far we shall be.

        Raises:
            Fenced: somebody else wrote it since; this worker is not the owner any more.
        """
        moved = replace(self.current, number=number, cursor=cursor, totals=totals, time=time, ahead=ahead)
        moved = self._signed(moved)
        try:
            self._tag = await self._store.swap(self._key, moved.to_json(), self._tag)
        except Conflict as conflict:
            raise Fenced(f"{self._key}: {_owner(self._key, conflict.stored)} has it now") from None
        self.current = moved

    def _signed(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, epoch=self._epoch, host=self._host, put_id=self._store.clock.nonce())


def _owner(key: str, stored: Stored | None) -> str:
    if stored is None:
        return "nobody (it was deleted)"
    found = Checkpoint.from_json(key, stored.body)
    return f"{found.host} with epoch {found.epoch}"


async def read_checkpoint(store: Store, layout: ProcessorLayout, partition: str) -> Checkpoint | None:
    """The checkpoint as it is stored: a hint, files beyond its number may be committed.

    Raises:
        CorruptObject: it is torn or no checkpoint.
    """
    key = layout.checkpoint(partition)
    stored = await store.get(key)
    return Checkpoint.from_json(key, stored.body) if stored else None

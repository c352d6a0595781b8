"""The stored state of a replay: which letters of a dead-letter file are replayed together, and which are done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import force_setattr, replace

from actorproc.errors import CorruptObject
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout, number_of, partition_of
from actorproc.storage.store import Store

Letter = Mapping[str, Any]
"""As `dead-letters list --json` prints it."""


class ReplayPart(msgspec.Struct, frozen=True):
    """Letters of one dead-letter file that are replayed together: a batch of the transaction."""

    log: str
    """Identity of the log, or of the topics."""
    sequences: tuple[int, ...] | None
    """Of the letters; None: all that no earlier part has."""
    done: bool
    claim: str = ""
    """Name of the replay that appends it now, to a stream without transactions."""
    value: bytes | None = None
    """Of the record that is appended, if an operator has corrected it; then the part has one letter."""


class ReplayState(Document, frozen=True):
    """The stored state of a dead-letter file's replay. The last part is batch number `batch` of `transaction`."""

    newest_format_version: ClassVar[int] = 4

    parts: tuple[ReplayPart, ...] = ()
    """Only the last one may be unfinished."""
    transaction: str = ""
    """Empty in documents of format version 1, whose parts were appended without a transaction."""
    void: int = 0
    """Batches of the transaction that append nothing, and are no parts any more."""

    def __post_init__(self) -> None:
        if not all(part.done for part in self.parts[:-1]):
            raise ValueError("a part that is not the last one is unfinished")
        if any(part.sequences == () for part in self.parts):
            raise ValueError("a part has no sequences")
        # Format version 3: a part has a value. An older actorproc would append the letter's own.
        # Format version 4: there are void batches. An older actorproc would take the number of one for its next part.
        least = 3 if any(part.value is not None for part in self.parts) else 2
        force_setattr(self, "format_version", 4 if self.void else least)

    @property
    def pending(self) -> ReplayPart | None:
        """The part that must be finished before anything else is replayed."""
        return self.parts[-1] if self.parts and not self.parts[-1].done else None

    @property
    def batch(self) -> int:
        """Number of the last part in the transaction."""
        return len(self.parts) - 1 + self.void

    def settled(self, sequences: Collection[int], letters: Sequence[Letter]) -> ReplayState:
        """After the unfinished part: these of its letters were appended. Without any, its batch is void."""
        if not sequences:
            return replace(self, parts=self.parts[:-1], void=self.void + 1)
        part = replace(self.parts[-1], done=True, claim="")
        if len(sequences) < len(self.of_last_part(letters)):
            part = replace(part, sequences=tuple(sorted(sequences)))
        return replace(self, parts=(*self.parts[:-1], part))

    def done(self, letters: Sequence[Letter]) -> set[int]:
        """Sequences of those of the file's `letters` that were replayed."""
        return _sequences([part for part in self.parts if part.done], letters)

    def of_last_part(self, letters: Sequence[Letter]) -> list[Letter]:
        """Those of the file's `letters` that belong to the last part, in order."""
        last = _sequences(self.parts, letters) - _sequences(self.parts[:-1], letters)
        return [letter for letter in letters if letter["sequence"] in last]


def _sequences(parts: Sequence[ReplayPart], letters: Sequence[Letter]) -> set[int]:
    everything = {letter["sequence"] for letter in letters}
    if any(part.sequences is None for part in parts):
        return everything
    return everything & {sequence for part in parts for sequence in part.sequences or ()}


async def replayed_sequences(store: Store, layout: ProcessorLayout, key: str, letters: Sequence[Letter]) -> set[int]:
    """Sequences of those of the `letters` in dead-letter file `key` that were replayed."""
    found = await SharedDocument(store, layout.replay(partition_of(key), number_of(key)), ReplayState).read()
    return set() if found is None else found.done(letters)


def deleted_meanwhile(key: str) -> CorruptObject:
    """The error for a document that was deleted during a replay."""
    return CorruptObject(key, "was deleted while a replay is under way; do not, or its letters may repeat")

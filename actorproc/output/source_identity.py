"""The source of a processor, recorded at its first start: positions of one stream mean nothing in another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from actorproc.errors import UsageError
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store


class SourceRecord(Document, frozen=True):
    """The stream that a processor reads. The put-id identifies the processor's datasets."""

    name: str
    identity: str | None = None
    kind: str = ""
    """Class of the source, which stands in for an identity if it has none."""
    partitions: tuple[str, ...] | None = None
    """Partitions at the first start, if that was at 'latest'. Partitions that came later begin with their first record:
    a start at their end would skip the records from before they were found."""


async def read_source(store: Store, layout: ProcessorLayout) -> SourceRecord | None:
    """The recorded source; None if the processor never ran.

    Raises:
        CorruptObject: the record is corrupt.
    """
    return await SharedDocument(store, layout.origin, SourceRecord).read()


async def agree_on_source(
    store: Store,
    layout: ProcessorLayout,
    identity: str | None,
    name: str,
    kind: str,
    partitions: Sequence[str] | None = None,
) -> SourceRecord:
    """Record the source at the first start; at later starts check that it is the same. Returns the record.

    Args:
        identity: `Source.identity`, which changes if a stream is deleted and created again.
        name: of the source, for messages.
        kind: class name of the source.
        partitions: that begin at 'latest'; recorded at the first start.

    Raises:
        UsageError: the processor belongs to another stream. Names both.
    """
    if recorded := await check_source(store, layout, identity, name, kind):
        return recorded
    if identity is not None:
        await _refuse_state_of_another(store, layout, identity, name, kind)
    first = SourceRecord(name, identity, kind, None if partitions is None else tuple(partitions))
    while recorded is None:
        with suppress(Conflict):
            return await SharedDocument(store, layout.origin, SourceRecord).swap(first)
        recorded = await check_source(store, layout, identity, name, kind)
    return recorded


async def check_source(
    store: Store, layout: ProcessorLayout, identity: str | None, name: str, kind: str = "", *, if_known: bool = False
) -> SourceRecord | None:
    """Check that the processor reads this stream. Returns its record; None if no source was recorded yet.

    Args:
        if_known: accept any stream if the recorded one has no identity.

    Raises:
        UsageError: the processor belongs to another stream. Names both.
    """
    recorded = await read_source(store, layout)
    if recorded is None or (if_known and recorded.identity is None):
        return recorded
    if (why := _mismatch(recorded, identity, name, kind)) is not None:
        raise UsageError(
            f"{layout.processor} in {store.url} belongs to another stream: {name} is {why}. Positions of one mean "
            "nothing in the other. Give another processor name (or container), or the source it began with"
        )
    return recorded


async def _refuse_state_of_another(store: Store, layout: ProcessorLayout, identity: str, name: str, kind: str) -> None:
    """Versions before recorded no source without an identity, so state without a record belongs to such a source."""
    begun = await documents(store, layout.checkpoints)
    if begun and not await check_source(store, layout, identity, name, kind):  # not by another host just now, either
        raise UsageError(
            f"{layout.processor} in {store.url} began with a source that has no identity, and {name} has one. "
            "Positions of one mean nothing in the other. Give another processor name (or container), or the source it "
            "began with"
        )


def _mismatch(recorded: SourceRecord, identity: str | None, name: str, kind: str) -> str | None:
    """Why the offered source is not the recorded one; None if it is."""
    if recorded.identity is not None and identity is not None:
        if recorded.identity == identity:
            return None
        return "deleted and created again" if recorded.name == name else f"not {recorded.name}"
    if recorded.identity is None and identity is None:
        same = recorded.kind == kind
        return None if same else f"of class {kind}, not {recorded.kind} (neither has an identity)"
    has, has_not = (recorded.name, name) if identity is None else (name, recorded.name)
    return f"not known to be {recorded.name}: {has} has an identity, {has_not} has none"


async def dataset_identity(store: Store, layout: ProcessorLayout) -> str | None:
    """An id that changes if the processor is deleted and created again; None if it never ran.

    Raises:
        CorruptObject: the record of its source is corrupt.
    """
    recorded = await read_source(store, layout)
    return recorded.put_id if recorded else None

"""Where a sink goes on, by its row and its entry in the registry. Rules: tests/protocol/sink_model.py."""

from __future__ import annotations

from actorproc.retention.readers import SinkEntry
from actorproc.sinks.protocol import SinkRefused, SinkRow


def next_commit(entry: SinkEntry, partition: str, row: SinkRow | None, home: str) -> int:
    """The number of the commit that the sink gets next.

    Args:
        row: the sink's row; None: it has none.
        home: container and processor.

    Raises:
        SinkRefused: the row belongs to another processor, or is newer than the registry.
    """
    part = entry.part(partition)
    if row is None or not row.home:
        return part.start
    if row.home != home:
        raise SinkRefused(
            f"the sink has rows of partition {partition} from {row.home}, another processor of this name: give one of "
            "the two sinks another name"
        )
    if row.life < entry.life:
        return part.start
    terms = [entry.term, *(redo.term for redo in part.redos)]
    if row.life > entry.life or row.term not in terms:  # rule `newer`
        raise SinkRefused(
            f"the sink has rows of partition {partition} that were delivered later than anything that this container "
            "knows: was the container restored from a backup? Remove the rows in the sink that it does not have, then "
            "`actorproc sinks delete`, and start again"
        )
    unseen = part.redos[terms.index(row.term) :]
    return min([row.position, *(redo.start for redo in unseen)])


def row_after(entry: SinkEntry, partition: str, row: SinkRow | None, home: str, position: int, put_id: str) -> SinkRow:
    """The sink's row after a delivery. It is in the latest term, and keeps the fence."""
    redos = entry.part(partition).redos
    term = redos[-1].term if redos else entry.term
    return SinkRow(home, entry.life, term, 0 if row is None else row.fence, position, put_id)


def is_in_term(entry: SinkEntry, partition: str, row: SinkRow | None, home: str) -> bool:
    """Whether the row is of this registration, and has begun all redeliveries."""
    return row is not None and row_after(entry, partition, row, home, row.position, row.put_id) == row

"""Takes back rows of a table: files of them leave it, or are replaced by copies without them (rule `cut`)."""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actorproc.errors import CorruptObject
from actorproc.records import SEQUENCE
from actorproc.sinks.protocol import SinkRefused
from actorproc.sinks.tables.protocol import CUT, AddedFile, RemovedFile, TableHome, TableSink, TableSnapshot
from actorproc.storage.names import number_of
from actorproc.storage.parquet import growing_columns, open_parquet, open_writer, repeating_floats


class _Copy(NamedTuple):
    body: bytes
    rows: int
    note: Any


async def cut(
    home: TableHome, sink: TableSink, table: TableSnapshot, partition: str, sequence: int, gone: Collection[str]
) -> tuple[list[AddedFile], list[RemovedFile]]:
    """Copies of the files that have rows behind `sequence`, and others; and the files that have such rows.

    A copy is an object that nothing names yet. If the transaction does not land, it is deleted as unused compacted
    files are.

    Args:
        gone: files that leave the table anyhow.

    Raises:
        SinkRefused: nobody can tell whether rows behind `sequence` are ours.
    """
    store, layout = home.store, home.layout
    adds, removes = list[AddedFile](), list[RemovedFile]()
    others = table.files.others_of(partition)
    names: dict[str, str | None] = {key: key for key in table.files.of(partition)}
    names |= {name: other.key for name, other in others.items()}
    for name, key in names.items():
        if name in gone:
            continue
        if key is None:
            body = await sink.read_elsewhere(name)
        else:
            body = None if (stored := await store.get(key)) is None else stored.body
        if body is None:
            raise SinkRefused(f"a reset takes rows back, and {name}, which the table names, cannot be read")
        made = await store.clock.run_in_thread(_without, key or name, body, sequence, sink)
        if made is None:
            continue
        if name in others and others[name].whose == "unknown":
            raise SinkRefused(
                f"a reset takes rows back, and {name} has rows that may be these, or of others: it is not in the "
                "folder of this processor. `actorproc sinks repair` with `--others remove` or `--others keep` decides"
            )
        removes.append(RemovedFile(name, partition, rows_go=True))
        if made.rows:
            first = number_of(name) if name == key else 0
            target = layout.compacted_file(partition, first, CUT + store.clock.nonce(), within=sink.table == "within")
            await store.put(target, made.body)
            adds.append(AddedFile(target, partition, len(made.body), made.rows, store.time.now(), made.note))
    return adds, removes


def _without(key: str, body: bytes, sequence: int, sink: TableSink) -> _Copy | None:
    """The rows up to `sequence`; None: the file has no others. CPU-heavy.

    Rows of others may have no sequence. They stay.
    """
    try:
        file = open_parquet(body)
        later = pc.fill_null(pc.greater(file.read([SEQUENCE.name])[SEQUENCE.name], sequence), False)
        if not pc.any(later).as_py():
            return None
        rows = file.read().filter(pc.invert(later))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptObject.unreadable(key, error) from None
    target = io.BytesIO()
    with open_writer(target, rows.schema, growing_columns(rows), repeating_floats(rows)) as writer:
        writer.write_table(rows)
    made = target.getvalue()
    return _Copy(made, rows.num_rows, sink.describe(pq.ParquetFile(io.BytesIO(made)).metadata))

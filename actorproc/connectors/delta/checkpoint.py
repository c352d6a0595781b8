"""Checkpoints of a Delta log: the state at a version as a Parquet file, so that readers need not replay all entries."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actorproc.connectors.delta.schema import PARTITION
from actorproc.connectors.delta.state import Action, DeltaState

_TEXTS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)
_READ = ("txn", "add", "metaData", "protocol")
_BATCH = 10_000


def write_checkpoint(state: DeltaState) -> tuple[bytes, int]:
    """The file, and the number of its actions. CPU-heavy.

    Removed files are left out: they are listed for VACUUM alone, which leaves them to us.
    """
    sections = {
        "protocol": pa.array([state.protocol], _SCHEMA.field("protocol").type),
        "metaData": pa.array([_metadata(state.metadata)], _SCHEMA.field("metaData").type),
        "txn": _txns(state),
        "add": _adds(state),
        "remove": pa.array([], _SCHEMA.field("remove").type),
    }
    size = sum(map(len, sections.values()))
    columns, before = dict[str, pa.Array](), 0
    for name, section in sections.items():
        after = size - before - len(section)
        kind = section.type
        columns[name] = pa.concat_arrays([pa.nulls(before, kind), section, pa.nulls(after, kind)])
        before += len(section)
    target = io.BytesIO()
    table = pa.Table.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)
    pq.write_table(table, target, compression="snappy")
    return target.getvalue(), size


def _metadata(content: Action) -> Action:
    """Maps as Arrow takes them: as pairs."""
    form = content.get("format") or {}
    return {
        **{name: value for name, value in content.items() if name in _SCHEMA.field("metaData").type.names},
        "format": {"provider": form.get("provider"), "options": list((form.get("options") or {}).items())},
        "configuration": list((content.get("configuration") or {}).items()),
    }


def _txns(state: DeltaState) -> pa.Array:
    kind = _SCHEMA.field("txn").type
    ids, versions = pa.array(state.txns.keys(), pa.string()), pa.array(state.txns.values(), pa.int64())
    return pa.StructArray.from_arrays([ids, versions, pa.nulls(len(ids), pa.int64())], fields=list(kind))


def _adds(state: DeltaState) -> pa.Array:
    kind, count, files = _SCHEMA.field("add").type, len(state.adds), list(state.adds.values())
    columns = [
        pa.array(state.adds.keys(), pa.string()),
        pa.MapArray.from_arrays(
            pa.array(range(count + 1), pa.int32()),
            pa.repeat(pa.scalar(PARTITION), count),
            pa.array([file.partition for file in files], pa.string()),
        ),
        pa.array([file.size for file in files], pa.int64()),
        pa.array([file.time for file in files], pa.int64()),
        pa.repeat(pa.scalar(False), count),
        pa.array([file.stats for file in files], pa.string()),
        pa.nulls(count, _TEXTS),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def read_checkpoint(parts: Sequence[bytes]) -> Iterator[Action]:
    """The actions of a checkpoint, of ours or of others: its files, of which there may be several."""
    for part in parts:
        file = pq.ParquetFile(pa.BufferReader(part))
        there = [name for name in _READ if name in file.schema_arrow.names]
        for batch in file.iter_batches(_BATCH, columns=there):
            for name in there:
                found = batch.column(name).drop_null()
                contents = _files(found) if name == "add" else map(_plain, found.to_pylist())
                yield from ({name: content} for content in contents)


def _files(adds: pa.StructArray) -> Iterator[Action]:
    """The added files. Column by column, which takes a quarter of the time: a table may have 100,000."""
    columns = {name: _column(adds, name) for name in ("path", "size", "modificationTime", "stats")}
    partitions = pc.map_lookup(adds.field("partitionValues"), pa.scalar(PARTITION), "first").to_pylist()
    for values, partition in zip(zip(*columns.values(), strict=True), partitions, strict=True):
        yield {**dict(zip(columns, values, strict=True)), "partitionValues": {PARTITION: partition}}


def _column(adds: pa.StructArray, name: str) -> list[Any]:
    known = adds.type.get_field_index(name) >= 0  # others may leave optional fields out
    return adds.field(name).to_pylist() if known else [None] * len(adds)


def _plain(content: Action) -> Action:
    """Maps as a JSON entry has them."""
    made = dict(content)
    for name in ("partitionValues", "configuration"):
        if isinstance(made.get(name), list):
            made[name] = dict(made[name])
    if isinstance(made.get("format"), dict):
        made["format"] = {**made["format"], "options": dict(made["format"].get("options") or ())}
    return {name: value for name, value in made.items() if value is not None}

"""Staged files: the records of an unfinished transaction, sorted by partition. Only the transaction reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.errors import CorruptObject
from actorproc.records import RECORD_SCHEMA

_PARTITIONS = b"actorproc.partitions"


class StagedFile(NamedTuple):
    """A stored staged file. `size`: bytes of its records in memory. `partitions`: those that its records are for."""

    key: str
    size: int
    partitions: tuple[int, ...]


def encode_staged(batches: Iterable[tuple[pa.RecordBatch, npt.NDArray[np.uint32]]]) -> tuple[bytes, tuple[int, ...]]:
    """The bytes of a staged file, and the partitions in it. Within a partition the order of records is kept. CPU-heavy.

    Args:
        batches: columns of `RECORD_SCHEMA`, and the partition of each record.
    """
    pairs = list(batches)
    chosen = np.concatenate([partitions for _, partitions in pairs])
    order = np.argsort(chosen, kind="stable")
    table = pa.Table.from_batches([data for data, _ in pairs], RECORD_SCHEMA).take(pa.array(order)).combine_chunks()
    partitions, counts = np.unique(chosen, return_counts=True)
    named = tuple(partitions.tolist())
    schema = RECORD_SCHEMA.with_metadata({_PARTITIONS: ",".join(map(str, named))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        at = 0
        for count in counts.tolist():
            for batch in table.slice(at, count).to_batches():
                writer.write_batch(batch)
            at += count
    return sink.getvalue().to_pybytes(), named


def decode_staged(key: str, body: bytes) -> dict[str, pa.RecordBatch]:
    """The records of a staged file, by partition. CPU-heavy: run it off the loop."""
    try:
        reader = pa.ipc.open_stream(pa.BufferReader(body))
        names = (reader.schema.metadata or {})[_PARTITIONS].decode().split(",")
        return dict(zip(names, (batch.cast(RECORD_SCHEMA) for batch in reader), strict=True))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptObject(key, f"is not a valid staged file ({error!r})") from None

"""A processor's dead letters as a dataset for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa

from actorproc.output.letter import corrupt_letters, decoded
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.source_identity import dataset_identity
from actorproc.records import RECORD_SCHEMA
from actorproc.spark.dataset import FileRows, SparkDataset
from actorproc.spark.output_dataset import check_processor
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string(), False), ("value", pa.binary())])))
_CAUSE = pa.struct(
    [pa.field("type", pa.string(), False), pa.field("message", pa.string(), False), ("traceback", pa.string())]
)

LETTER_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), False),
        pa.field("sequence", pa.int64(), False),
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("headers", _HEADERS, False),
        ("timestamp", RECORD_SCHEMA.field("timestamp").type),
        pa.field("error", _CAUSE, False),
        pa.field("attempts", pa.int32(), False),
        pa.field("host", pa.string(), False),
        pa.field("epoch", pa.int64(), False),
        pa.field("time", pa.timestamp("us", "UTC"), False),
    ]
)
"""The fields of `actorproc dead-letters list --json`; keys and values are the original bytes."""


class DeadLetters(SparkDataset):
    """Published dead letters. Numbers are commits; commits without dead letters are left out.

    A commit's letters are published before the next commit is made. So after a number was seen, a new listing shows
    every lower number that will ever exist.
    """

    kind = "dead letters"
    dense = False

    def __init__(self, name: str) -> None:
        self.path = name
        self._layout = ProcessorLayout(name)

    async def schema(self, store: Store) -> pa.Schema:
        await check_processor(store, self._layout)
        return LETTER_SCHEMA

    async def identity(self, store: Store) -> str:
        return await dataset_identity(store, self._layout) or ""

    async def partitions(self, store: Store) -> Sequence[str]:
        return await partitions_with_state(store, self._layout)

    def key(self, partition: str, number: int) -> str:
        return self._layout.dead_letter_file(partition, number)

    def decode(
        self, partition: str, number: int, stop: int, key: str, body: bytes, columns: Sequence[str]
    ) -> tuple[Iterator[FileRows], int]:
        # Each line is parsed whole. Only wanted columns, and the sequence to filter by, become Arrow.
        wanted = [field for field in LETTER_SCHEMA if field.name in columns or field.name == "sequence"]
        return self._letters(key, body, pa.schema(wanted)), number + 1

    def _letters(self, key: str, body: bytes, schema: pa.Schema) -> Iterator[FileRows]:
        if not body:
            return  # purged
        try:
            letters = [_decoded(orjson.loads(line)) for line in body.splitlines()]
            table = pa.RecordBatch.from_pylist(letters, schema)
        except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise corrupt_letters(key, error) from None
        yield FileRows(dict(zip(schema.names, table.columns, strict=True)), table.column("sequence"))


def _decoded(letter: dict[str, Any]) -> dict[str, Any]:
    """The letter with bytes and timestamps decoded."""
    headers = [{**header, "value": decoded(header["value"], header.get("encoding"))} for header in letter["headers"]]
    return {
        **letter,
        "key": decoded(letter["key"], letter.get("key_encoding")),
        "value": decoded(letter["value"], letter.get("encoding")),
        "headers": headers,
        "timestamp": letter["timestamp"] and datetime.fromisoformat(letter["timestamp"]),
        "time": datetime.fromisoformat(letter["time"]),
    }

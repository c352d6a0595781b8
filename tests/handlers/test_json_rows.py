"""JsonRows: JSON objects to typed rows by a schema, as a handler."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from actorproc import JsonRows, Settings
from actorproc.codecs.json_parsing import JsonParser
from actorproc.errors import HandlerDefinitionError, SchemaError, SettingsError
from actorproc.handler.options import load_options
from actorproc.processor import Processor
from actorproc.runtime.clock import Clock
from actorproc.testing import run_handler
from actorproc.testing.memory_source import MemorySource
from tests.handlers.running import run

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


class Flights(JsonRows):
    output_schema = "carrier string NOT NULL, dep_delay double"


VALUES = [
    b'{"carrier": "AA", "dep_delay": 2, "tail": "N1"}',
    b'{"carrier": "UA"}',
    b"poison",
    b'{"dep_delay": 1}',
    None,
]


async def test_failures_are_dead_letters_at_once_and_the_rest_are_rows() -> None:
    result = await run(Flights, VALUES)
    assert result.rows == [
        {"carrier": "AA", "dep_delay": 2.0, "_sequence": 100},
        {"carrier": "UA", "dep_delay": None, "_sequence": 101},
    ]
    assert {s: letter["error"]["message"].partition(": Expecting")[0] for s, letter in result.letters.items()} == {
        102: "the value is not JSON",
        103: "column 'carrier': None does not fit: it is NOT NULL",
        104: "the value is null (a tombstone), not a JSON object",
    }
    assert [letter["error"]["type"] for _, letter in sorted(result.letters.items())] == [
        "ValueError",
        "RowMismatch",
        "ValueError",
    ]
    assert {letter["attempts"] for letter in result.letters.values()} == {1}
    assert result.letters[102]["value"] == "poison"


async def test_the_schema_may_come_as_an_option() -> None:
    result = await run(JsonRows, VALUES[:2], options={"output_schema": "tail string"})
    assert [row["tail"] for row in result.rows] == ["N1", None]
    result = await run(Flights, VALUES[:2], options={"output_schema": "carrier string"})
    assert result.table is not None
    assert result.table.schema.names == ["carrier", "_sequence"]


async def test_a_missing_schema_or_unknown_option_is_refused() -> None:
    with pytest.raises(
        HandlerDefinitionError, match="JsonRows has no columns: set output_schema in a subclass, or give --option"
    ):
        await run(JsonRows, VALUES)
    with pytest.raises(SettingsError, match="JsonRows has no option schema; it has: output_schema"):
        await run(JsonRows, VALUES, options={"schema": "a int"})


async def test_a_processor_writes_rows_that_spark_reads(tmp_path: Path) -> None:
    """Through source, processor and folder store; the files are plain Parquet of the declared types."""
    source = MemorySource(2)
    documents: list[list[dict[str, Any]]] = [
        [{"carrier": "AA", "dep_delay": n, "at": "2013-01-01T12:00:00Z"} for n in range(5)],
        [{"carrier": "UA"}],
    ]
    for partition, of_partition in enumerate(documents):
        source.append(str(partition), [*map(orjson.dumps, of_partition), b"poison"])
    await Processor(
        Flights, name="flights", source=source, container=str(tmp_path),
        options={"output_schema": "carrier string, dep_delay double, at timestamp"}, dead_letter_limit=1,
    ).run(until_end=True)  # fmt: skip
    stored = (
        ds.dataset(tmp_path / "flights/output", partitioning="hive")
        .to_table()
        .sort_by([("carrier", "ascending"), ("_sequence", "ascending")])
    )
    assert stored.schema.names == ["carrier", "dep_delay", "at", "_sequence", "partition"]
    assert stored.column("carrier").to_pylist() == ["AA"] * 5 + ["UA"]
    assert stored.column("dep_delay").to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0, None]
    assert stored.column("at").to_pylist() == [NOON] * 5 + [None]
    letters = [
        orjson.loads(line)
        for path in tmp_path.rglob("dead-letters/**/*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    assert sorted((letter["partition"], letter["sequence"], letter["value"]) for letter in letters) == [
        ("0", 5, "poison"),
        ("1", 1, "poison"),
    ]
    file = next(tmp_path.rglob("output/**/*.parquet"))
    columns: Sequence[Any] = pq.ParquetFile(io.BytesIO(file.read_bytes())).schema
    assert [column.physical_type for column in columns] == ["BYTE_ARRAY", "DOUBLE", "INT64", "INT64"]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a int, b binary", "column 'b' is binary, which JSON does not have: declare it string"),
        ("s struct<x: array<binary>>", r"column 's\.x' is binary"),
        (
            "m map<int, string>",
            r"column 'm' is a map by int: keys of JSON objects are strings; declare map<string, string>",
        ),
    ],
)
def test_a_type_without_a_json_counterpart_is_refused_at_the_start(ddl: str, message: str) -> None:
    class Handler(JsonRows):
        output_schema = ddl

    with pytest.raises(SchemaError, match=message):
        Handler.schema_for(load_options(Handler, environment={}))


@pytest.mark.parametrize(("cores", "on_the_loop"), [(1, {2, 3, 5, 6}), (2, set[int]())])
async def test_only_good_batches_are_parsed_on_the_event_loop(
    cores: int, on_the_loop: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, seen = JsonParser.parse, list[bool]()

    def noting(self: JsonParser, values: pa.Array, sequences: pa.Int64Array) -> Any:
        seen.append(threading.current_thread() is threading.main_thread())
        return parse(self, values, sequences)

    monkeypatch.setattr(JsonParser, "parse", noting)
    monkeypatch.setattr(Clock, "cores", cores)
    good, bad = b'{"n": 1}', b"poison"
    values = [good, good, bad, good, good, good]
    result = await run_handler(Counts, values, settings=Settings(max_batch_records=1))
    assert (len(result.rows), len(result.dead_letters)) == (5, 1)
    # The first, and the one after the bad one, show how quick they are.
    assert {number for number, there in enumerate(seen, 1) if there} == on_the_loop


class Counts(JsonRows):
    output_schema = "n bigint"

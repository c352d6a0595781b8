"""The data source by itself: decoding and errors. Without Spark."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType

from actorproc import Producer
from actorproc.errors import CorruptObject, UsageError
from actorproc.spark.data_source import ActorprocSource
from actorproc.spark.dead_letter_dataset import DeadLetters
from actorproc.storage.names import log_dir
from tests.spark.committing import LAYOUT, Fleet


def lines(error: BaseException) -> list[str]:
    """Frames of the traceback that Spark's workers put into their error, without the test's own call."""
    assert error.__traceback__ is not None
    return "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next)).splitlines()


async def test_only_the_requested_columns_of_a_log_are_decoded(tmp_path: Path) -> None:
    async with Producer(str(tmp_path), partitions=1) as producer:
        await producer.send_many([bytes([n]) * 100 for n in range(100)], keys=[b"k"] * 100)
    (path,) = (tmp_path / log_dir("0")).glob("*.parquet")
    body = bytearray(path.read_bytes())
    described = pq.ParquetFile(path).metadata.row_group(0)
    (value,) = (c for c in map(described.column, range(described.num_columns)) if c.path_in_schema == "value")
    end = value.data_page_offset + value.total_compressed_size
    body[end - 9] ^= 1  # within its page, whose checksum fails then
    path.write_bytes(body)

    def read(**columns: DataType) -> dict[str, list[Any]]:
        schema = StructType([StructField(name, kind) for name, kind in columns.items()])
        reader = ActorprocSource({"path": str(tmp_path), "kind": "log"}).reader(schema)
        (batch,) = (batch for part in reader.partitions() for batch in reader.read(part))
        found: dict[str, list[Any]] = cast(pa.RecordBatch, batch).to_pydict()
        return found

    assert read(key=BinaryType(), offset=LongType()) == {"key": [b"k"] * 100, "offset": list(range(100))}
    assert read(topic=StringType(), timestampType=IntegerType()) == {
        "topic": [tmp_path.name] * 100,
        "timestampType": [0] * 100,
    }
    with pytest.raises(CorruptObject, match=path.name):
        read(value=BinaryType())


async def test_only_the_requested_columns_of_dead_letters_become_arrow(tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(p0=10)
    (path,) = (tmp_path / LAYOUT.dead_letter_dir("0")).glob("*.jsonl")
    rows, _ = DeadLetters("numbers").decode("0", 0, 1, path.name, path.read_bytes(), ["host"])
    assert [list(found.columns) for found in rows] == [["sequence", "host"]]


async def test_a_usage_error_has_four_lines_without_our_frames(tmp_path: Path) -> None:
    await Fleet(str(tmp_path)).commit(p0=5)
    options = {"path": str(tmp_path), "name": "nmbers"}
    with pytest.raises(UsageError) as never_ran:
        ActorprocSource(options).schema()
    with pytest.raises(UsageError) as misspelt:
        ActorprocSource({**options, "startSequense": "3"}).reader(StructType())
    with pytest.raises(UsageError) as missing:
        ActorprocSource({**options, "name": "numbers", "partitions": "7"}).reader(StructType()).partitions()
    for raised in (never_ran, misspelt, missing):
        assert len(lines(raised.value)) == 4
        assert lines(raised.value)[-1].startswith("actorproc.errors.UsageError: ")


def test_imports_are_exempt_from_garbage_collection() -> None:
    lines = ("import gc", "from actorproc.spark.data_source import ActorprocSource as S", "S({})", "gc.collect()")
    script = "; ".join((*lines, "print(len(gc.get_objects()), gc.get_freeze_count())"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    looked_at, spared = map(int, done.stdout.split())
    assert looked_at < spared / 10

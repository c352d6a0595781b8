"""How files are written: which columns are kept as steps, and that any file reads back as it was."""

from __future__ import annotations

import io
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc.errors import CorruptObject
from actorproc.storage.parquet import encoding_cost, footer_of, open_parquet, repeating_floats, write_parquet

EPOCH = datetime(2013, 1, 1, tzinfo=UTC)


def _encodings(body: bytes) -> dict[str, tuple[str, ...]]:
    group = pq.ParquetFile(pa.BufferReader(body)).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema: column.encodings for column in columns}


def _written(columns: dict[str, pa.Array], **options: Any) -> dict[str, tuple[str, ...]]:
    table = pa.table(columns)
    body = write_parquet(table, {"who": "me"}, **options)
    read = pq.ParquetFile(pa.BufferReader(body))
    assert read.read().equals(table)
    assert footer_of("key", body).metadata == {"who": "me"}
    return _encodings(body)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(1000), pa.int64()),
        pa.array([7] * 1000, pa.int8()),
        pa.array(range(-500, 500), pa.int32()),
        pa.array([EPOCH + timedelta(seconds=n) for n in range(1000)], pa.timestamp("us", "UTC")),
    ],
    ids=["int64", "constant int8", "int32 through zero", "timestamp"],
)
def test_whole_numbers_and_times_that_never_fall_are_kept_as_steps(values: pa.Array) -> None:
    encodings = _written({"a.b": values, "text": pa.array(["x"] * 1000)})
    assert "DELTA_BINARY_PACKED" in encodings["a.b"]
    assert "RLE_DICTIONARY" in encodings["text"]


@pytest.mark.parametrize(("rows", "codec"), [(10, "UNCOMPRESSED"), (1000, "ZSTD")])
def test_a_file_within_one_block_of_disk_is_not_compressed(rows: int, codec: str) -> None:
    body = write_parquet(pa.table({"text": ["some text"] * rows}), {})
    assert pq.ParquetFile(pa.BufferReader(body)).metadata.row_group(0).column(0).compression == codec


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 0] * 500, pa.int64()),
        pa.array([1, None] * 500, pa.int64()),
        pa.array([{"x": n} for n in range(1000)]),
        pa.array([[n] for n in range(1000)]),
    ],
    ids=["falling", "with nulls", "struct", "list"],
)
def test_all_other_columns_but_floats_try_a_dictionary(values: pa.Array) -> None:
    (encoding,) = _written({"values": values}).values()
    assert "RLE_DICTIONARY" in encoding


def test_columns_without_a_dictionary_can_be_chosen() -> None:
    encodings = _written({"a": pa.array(["x"] * 10), "b": pa.array(["x"] * 10)}, use_dictionary=["a"])
    assert ("RLE_DICTIONARY" in encodings["a"], "RLE_DICTIONARY" in encodings["b"]) == (True, False)


def test_steps_make_the_column_of_sequences_next_to_nothing() -> None:
    body = write_parquet(pa.table({"_sequence": pa.array(range(100_000), pa.int64())}), {})
    assert len(body) < 5_000


def test_a_table_without_rows_or_without_columns_can_be_written() -> None:
    for table in (pa.table({"a": pa.array([], pa.int64())}), pa.table({})):
        assert pq.ParquetFile(pa.BufferReader(write_parquet(table, {}))).read().equals(table)


def test_a_damaged_byte_is_noticed_on_reading() -> None:
    body = bytearray(
        write_parquet(pa.table({"a": pa.array([1.5, 0.75, 0.25])}), {}, use_dictionary=[], compression="none")
    )
    assert open_parquet(bytes(body)).read()["a"].to_pylist() == [1.5, 0.75, 0.25]
    body[body.index(struct.pack("<d", 0.75))] ^= 1
    with pytest.raises(OSError, match="CRC checksum"):
        open_parquet(bytes(body)).read()


def test_only_texts_that_repeat_throughout_are_read_as_dictionaries() -> None:
    rows = 60_000
    table = pa.table(
        {
            "few": [f"N{number % 400}" for number in range(rows)],
            "all differ": [f"{number:032}" for number in range(rows)],  # too many for a dictionary
            "in a list": [[f"N{number % 400}"] for number in range(rows)],
            "number": [number % 7 for number in range(rows)],
            "none": pa.nulls(rows, pa.string()),
        }
    )
    body = write_parquet(table, {})
    read = open_parquet(body, dictionaries=True).read()
    assert [field.name for field in read.schema if pa.types.is_dictionary(field.type)] == ["few", "none"]
    assert read.cast(table.schema).equals(table)
    assert open_parquet(body).read().equals(table)


def test_many_columns_or_chunks_raise_the_encoding_cost() -> None:
    wide = pa.table({f"c{n}": [1.0] for n in range(100)})
    pieces = pa.concat_tables([pa.table({"n": [1]})] * 300)
    assert encoding_cost(pa.table({"n": [1] * 300})) < 4096
    assert encoding_cost(wide) > 2**15
    assert encoding_cost(pieces) > 2**15


def test_no_bit_of_our_entries_in_a_footer_can_turn_unnoticed() -> None:
    entry = '{"next":[17,"17"],"epoch":3}'
    table = pa.table({"n": [1, 2, 3]})
    body = write_parquet(table, {"actorproc.commit": entry})
    start = body.index(b"actorproc.commit")
    assert footer_of("key", body).metadata == {"actorproc.commit": entry}
    for bit in range(8 * start, 8 * (body.index(entry.encode()) + len(entry))):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read = footer_of("key", bytes(damaged)).metadata
        except CorruptObject:
            continue
        assert "actorproc.commit" not in read, f"bit {bit} turned, and {read} was read"  # then it is no commit of ours


def test_entries_without_their_checksum_are_refused() -> None:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.add_key_value_metadata({"actorproc.commit": "{}"})
    with pytest.raises(CorruptObject, match="checksum"):
        footer_of("key", sink.getvalue())


def test_a_column_name_that_is_no_text_is_damage_too() -> None:
    body = write_parquet(pa.table({"value": [1]}), {"actorproc.commit": "{}"})
    damaged = body.replace(b"value", b"valu\xe5")
    with pytest.raises(CorruptObject, match="cannot be read"):
        footer_of("key", damaged)
    with pytest.raises(pa.ArrowInvalid):
        open_parquet(damaged)


def test_a_negative_zero_is_found_by_spark_filters() -> None:
    table = pa.table(
        {
            "x": pa.array([1.0, float("nan"), -0.0]),
            "f": pa.array([None, -0.0, 0.0], pa.float32()),
            "s": pa.array([{"y": 0.5, "n": 1}] * 3),
            "n": pa.array([1, 2, 3]),
            "t": pa.array(["a", "b", "c"]),
            "d": pa.array([0.0, -1.0, float("nan")]),
            "e": pa.array([0.0, -1.0, None], pa.float32()),
        }
    )
    group = pq.ParquetFile(pa.BufferReader(write_parquet(table, {}))).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    repeating = {c.path_in_schema for c in columns if any("DICTIONARY" in encoding for encoding in c.encodings)}
    assert repeating == {"s.n", "t", "d", "e"}
    bounded = {column.path_in_schema for column in columns if column.is_stats_set and column.statistics.has_min_max}
    assert bounded == {"s.n", "n", "t"}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("values", [[], [None], [-0.0, 0.0, -0.0]])
def test_only_the_visible_part_of_a_slice_is_searched_for_negative_zero(kind: pa.DataType, values: list[float]) -> None:
    column = pa.array(values, kind)
    assert repeating_floats(pa.table({"x": column[1:2]})) == ["x"]


def test_a_column_and_a_nested_field_may_have_the_same_path() -> None:
    columns = {"a.b": pa.array([1, 2]), "a": pa.array([{"b": "x"}, {"b": "y"}])}
    table = pa.table(columns)
    assert pq.read_table(io.BytesIO(write_parquet(table, {}))).equals(table)

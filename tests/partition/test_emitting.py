"""Rows as handlers emit them, one by one or as columns: each belongs to a record of the batch at hand."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc import errors
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch, Record
from actorproc.storage.parquet import write_parquet
from tests.partition.running import Doubler, Run, column, letters, numbers


async def test_rows_carry_the_sequence_of_their_record() -> None:
    outcome = await Run(Doubler())(numbers(7, 8))
    assert column(outcome, "_sequence") == [100, 101]
    assert column(outcome, "n") == [7, 8]


@pytest.mark.parametrize("row", [{"n": 1}, {"n": "no number"}])
async def test_a_row_for_a_record_of_another_batch_stops_the_partition(row: dict[str, Any]) -> None:
    other = numbers(1, 2, 3)
    attempts = []

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            attempts.append(ctx.attempt)
            ctx.emit(other[2], row)

    with pytest.raises(
        errors.HandlerMisuse, match=r"a row was emitted for record 102, which is not among .* \(100 to 100\)"
    ):
        await Run(Handler())(numbers(1))
    assert attempts == [1], "another attempt may succeed by chance, as the handler is another by then"


async def test_a_pair_emitted_for_the_first_of_two_batches_stops_the_partition() -> None:
    class Pairs(PartitionHandler):
        output_schema = "a long, b long"

        def __init__(self) -> None:
            self.previous: Record | None = None

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                if self.previous is not None:
                    ctx.emit(self.previous, {"a": self.previous.json(), "b": record.json()})
                self.previous = record

    run = Run(Pairs())
    assert column(await run(numbers(0, 1)), "b") == [1]
    with pytest.raises(
        errors.HandlerMisuse, match=r"for record 101, which is not among .*emitted for the last of them"
    ):
        await run(Batch.of("0", [b"2", b"3"], [102, 103]))


async def test_columns_are_emitted_without_touching_records() -> None:
    class Handler(PartitionHandler):
        output_schema = "text string"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            table = batch.to_arrow()
            ctx.emit_arrow(pa.table({"_sequence": table["_sequence"], "text": table["value"].cast(pa.string())}))

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "text") == ["1", "2"]
    assert column(outcome, "_sequence") == [100, 101]


async def test_columns_without_sequence_are_refused_clearly() -> None:
    class Handler(PartitionHandler):
        output_schema = "text string"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit_arrow(pa.table({"text": ["a"]}))

    with pytest.raises(errors.HandlerMisuse, match="the table has no column _sequence"):
        await Run(Handler())(numbers(1))


async def test_a_row_that_is_none_says_where_it_may_come_from() -> None:
    class Emits(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit(batch[0], None)  # type: ignore[arg-type]

    outcome = await Run(Emits())(numbers(1))
    assert "ctx.map returns None for a record that failed: skip it" in letters(outcome)[100]["error"]["message"]


async def test_a_row_for_a_missing_sequence_is_refused() -> None:
    class Foreign(PartitionHandler):
        output_schema = "n long"
        kept: ClassVar[list[Record]] = []

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            self.kept.extend(batch)
            for record in batch:
                ctx.emit(self.kept[0] if record.json() == 9 else record, {"n": record.json()})

    run = Run(Foreign())
    await run(numbers(0))
    with pytest.raises(errors.HandlerMisuse, match=r"for record 100, which is not among those at hand \(99 to 101\)"):
        await run(Batch.of("0", [b"1", b"9"], [99, 101]))


async def test_numpy_arrays_that_were_emitted_may_be_used_again() -> None:
    class Reusing(PartitionHandler):
        output_schema = "n long, pair array<double>"
        sequences, numbers, pairs = np.zeros(9, np.int64), np.zeros(9, np.int64), np.zeros(18)

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for start in range(0, len(batch), 2):
                part = batch[start : start + 2]
                size = len(part)
                self.sequences[:size], self.numbers[:size] = part.sequences, part.json()
                self.pairs[: 2 * size] = part.json() * 2
                pairs = pa.FixedSizeListArray.from_arrays(pa.array(self.pairs[: 2 * size]), 2)
                ctx.emit_arrow(
                    pa.table(
                        {
                            "_sequence": self.sequences[:size],
                            "n": self.numbers[:size],
                            "pair": pairs.cast(pa.list_(pa.float64())),
                        }
                    )
                )

    outcome = await Run(Reusing())(numbers(0, 1, 2, 3))
    assert (column(outcome, "n"), column(outcome, "_sequence")) == ([0, 1, 2, 3], [100, 101, 102, 103])
    assert column(outcome, "pair") == [[0, 1], [0, 1], [2, 3], [2, 3]]


async def test_the_values_of_an_emitted_dictionary_may_be_used_again() -> None:
    class Reusing(PartitionHandler):
        output_schema = "n long, few array<long>"
        values = np.zeros(3, np.int64)

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                self.values[:] = record.json() * np.arange(3)
                few = pa.DictionaryArray.from_arrays(pa.array([2, None, 1]), pa.array(self.values))
                columns = {"n": few[2:], "few": pa.ListArray.from_arrays(pa.array([0, 3]), few)}
                ctx.emit_arrow(pa.table({"_sequence": [record.sequence], **columns}))

    outcome = await Run(Reusing())(numbers(1, 5))
    assert column(outcome, "n") == [1, 5]
    assert column(outcome, "few") == [[2, None, 1], [10, None, 5]]


@pytest.mark.parametrize("given", [pa.nulls(2), pa.array([None, {"deep": {}}]), pa.array([{"deep": None}, None])])
async def test_a_null_struct_with_a_not_null_field_is_written(given: Any) -> None:
    class Handler(PartitionHandler):
        output_schema = "s struct<deep: struct<more: struct<x: int NOT NULL>>>"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit_arrow(pa.table({"_sequence": batch.sequence_array, "s": given}))

    outcome = await Run(Handler())(numbers(1, 2))
    written = write_parquet(pa.concat_tables(outcome.tables), {})
    assert [bool(row["s"]) for row in pq.read_table(io.BytesIO(written)).to_pylist()] == given.is_valid().to_pylist()


async def test_nulls_and_misfits_in_a_not_null_column_are_dead_letters() -> None:
    class Handler(PartitionHandler):
        output_schema = "n int NOT NULL"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.emit_arrow(pa.table({"_sequence": batch.sequence_array, "n": pa.array([1.5, None, 7.0, None])}))

    outcome = await Run(Handler())(numbers(1, 2, 3, 4))
    assert column(outcome, "n") == [7]
    assert {sequence: letter["error"]["message"] for sequence, letter in letters(outcome).items()}.keys() == {
        100,
        101,
        103,
    }


@pytest.mark.parametrize("given", [pa.decimal128(38, 0), pa.decimal256(60, 0)])
async def test_a_decimal_too_large_for_its_column_is_a_dead_letter(given: Any) -> None:
    class Handler(PartitionHandler):
        output_schema = "n decimal(38,10)"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            values = pa.array([Decimal(14819911229528200147630328018196999817), Decimal(7)], given)
            ctx.emit_arrow(pa.table({"_sequence": batch.sequence_array, "n": values}))

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "n") == [7]
    assert letters(outcome).keys() == {100}


async def test_a_struct_with_two_fields_of_one_name_is_refused() -> None:
    class Handler(PartitionHandler):
        output_schema = "s struct<x: long>"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
            ctx.emit_arrow(pa.table({"_sequence": batch.sequence_array, "s": twice}))

    assert (
        "column 's' is struct<x: int64, x: int64>" in letters(await Run(Handler())(numbers(1)))[100]["error"]["message"]
    )

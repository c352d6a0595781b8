"""Batches that a handler holds: their thread, the permitted use of their records, and that they are freed."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from tests.partition.running import Doubler, Run, column, letters, numbers


async def test_a_plain_def_runs_in_a_thread() -> None:
    import threading

    class Handler(PartitionHandler):
        output_schema = "n long, main boolean"

        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                main = threading.current_thread() is threading.main_thread()
                ctx.emit(record, {"n": record.json(), "main": main})

    outcome = await Run(Handler())(numbers(1, 2))
    assert column(outcome, "main") == [False, False]


async def test_rows_of_a_batch_are_freed_although_an_attempt_failed(collector_off: None) -> None:
    class Handler(Doubler):
        bad = frozenset({2})

    run = Run(Handler())
    outcome = await run(numbers(1, 2, 3))
    rows = weakref.ref(outcome.tables[0])
    assert column(outcome, "n") == [1, 3]
    del outcome
    assert rows() is None


async def test_batches_that_look_alike_are_progress() -> None:
    told: list[object] = []

    class Handler(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            told.append(run.processor.calls.progress)

    run = Run(Handler())
    for first in (0, 2):
        await run(Batch.of("0", [b"1", b"2"], [first, first + 1]))
    assert None not in told
    assert told[0] != told[1]
    assert run.processor.calls.progress is None


async def test_a_batch_is_freed_although_rows_hold_its_records() -> None:
    batches: list[weakref.ref[Batch]] = []

    class Holding(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            batches.append(weakref.ref(batch))
            for record in batch:
                ctx.emit(record, {"n": record})

    outcome = await Run(Holding())(numbers(1, 2))
    assert list(letters(outcome)) == [100, 101]
    gc.collect()
    assert {batch() for batch in batches} == {None}


async def test_records_can_be_copied_and_pickled_during_a_batch() -> None:
    class Copying(Doubler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                for copied in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
                    assert (copied.sequence, copied.value, copied.key) == (record.sequence, record.value, record.key)
                    ctx.emit(copied, {"n": record.json()})

    assert column(await Run(Copying())(numbers(5, 6)), "n") == [5, 5, 6, 6]


def test_records_of_a_batch_are_equal_where_they_are_the_same() -> None:
    batch, other = numbers(5, 5), numbers(5, 5)
    assert [record == batch[0] for record in batch] == [True, False]
    assert len({*batch, *batch}) == 2
    assert batch[0] != other[0]


class Spoiling(Doubler):
    """Takes the columns for its own lists."""

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        values, sequences = batch.values, batch.sequences
        records = list(batch)
        if ctx.attempt == 1:
            while values:
                values.pop()
            sequences.clear()
            raise ConnectionError("away")
        values.sort(key=lambda value: -int(value or 0))
        values[0] = b"77"
        for record in records:
            if record.sequence == 101:
                ctx.dead_letter(record, "no")
            else:
                ctx.emit(record, {"n": record.sequence})


async def test_a_handler_that_changes_lists_of_its_batch_affects_no_other_attempt() -> None:
    outcome = await Run(Spoiling())(numbers(0, 1, 2, 3))
    assert column(outcome, "n") == [100, 102, 103]
    assert {sequence: letter["value"] for sequence, letter in letters(outcome).items()} == {101: "1"}

"""A log and a container as a version writes them, kept as one archive for each version: later versions open them.

`python -m tests.releases` writes the archive of this version. Do it once, when it is released.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer, __version__
from actorproc.admin.dead_letters import DeadLetters, LetterId, Selection
from actorproc.config.settings import Settings
from actorproc.output.compaction import merge, plan, switch
from actorproc.output.schema_document import read_schema
from actorproc.rows.output_schema import output_schema
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.processor.doubling import QUICK

FOLDER = Path(__file__).parent
LOG, CONTAINER = "log", "container"
LAYOUT = ProcessorLayout("Totals")
PARTITIONS = 2
ROUNDS = 4
"""Runs, each by another host: so many commits of each partition are a walk of the next one."""
RECORDS = 20
"""Appended before each run."""
REPLAYED = 5
"""The record whose dead letter is replayed."""


class Totals(PartitionHandler):
    """Counts the records of each remainder by ten as keyed state. A number that ends in 5 is a dead letter."""

    output_schema = "n long, count long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        counts = ctx.state("counts")
        for record in batch:
            number = record.json()
            if number % 10 == 5:
                ctx.dead_letter(record, "a five")
                continue
            count = counts.get(number % 10, 0) + 1
            counts.set(number % 10, count)
            ctx.emit(record, {"n": number, "count": count})


class Followed(PartitionHandler):
    """Reads the output of `Totals`."""

    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"n": record.json()["n"]})


async def append(place: Path, first: int) -> None:
    """Append `RECORDS` numbers from `first` on."""
    async with Producer(str(place / LOG), partitions=PARTITIONS) as producer:
        numbers = range(first, first + RECORDS)
        await producer.send_many([str(n).encode() for n in numbers], keys=[str(n).encode() for n in numbers])


async def process(place: Path, host: str) -> None:
    """Run both processors up to the end of the log."""
    container = str(place / CONTAINER)
    quick: dict[str, Any] = {**QUICK, "host": host, "container": container, "dead_letter_limit": 1}
    await Processor(Totals, source=str(place / LOG), **quick).run(until_end=True)
    await Processor(Followed, source=f"actorproc+file://{container}/Totals", **quick).run(until_end=True)


async def write(place: Path) -> None:
    """Write a log and a container with an object of each kind that lasts."""
    for number in range(ROUNDS):
        await append(place, number * RECORDS)
        await process(place, f"host-{number}")
    async with open_store(str(place / CONTAINER), Settings()) as store:
        letters = await DeadLetters.opened(store, LAYOUT)
        found = [letter async for letter in letters.select(Selection()) if letter["value"] == str(REPLAYED)]
        (chosen,) = (LetterId(letter["partition"], letter["sequence"]) for letter in found)
        await letters.replay(Selection(ids=frozenset({chosen})), Settings(), str(place / LOG))
        schema = await read_schema(store, LAYOUT)
        (planned,) = await plan(store, LAYOUT, ["0"], target_size=2**30, older_than=0)
        (group,) = planned.groups
        merged = await merge(store, LAYOUT, group, output_schema(schema))
        assert merged is not None
        await switch(store, LAYOUT, planned, merged)


def archive(place: Path) -> Path:
    """Archive the written objects, without the hidden folders of the file store."""
    for hidden in place.rglob(".actorproc"):
        shutil.rmtree(hidden)
    return Path(shutil.make_archive(str(FOLDER / __version__), "zip", place))

"""Measures the CPU time of transactions of a Delta table, and of a committer's turns."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from actorproc.connectors.delta import DeltaTable
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.sinks.protocol import SinkPlace
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.protocol import AddedFile, Place, TableChange, TableHome
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from tests.connectors.delta.chain import SCHEMA, Chain

LAYOUT = ProcessorLayout("Copy")
STATS = '{"numRecords":10,"minValues":{"n":1},"maxValues":{"n":2},"nullCount":{"n":0}}'


async def transactions(store: Store, partitions: int, number: int, files: int) -> list[float]:
    """CPU seconds of each transaction, which adds a file to some partitions."""
    table = DeltaTable("delta", {}, SinkPlace("table", "Copy", SYSTEM))
    await table.open(SCHEMA, TableHome(store, LAYOUT, "identity"))
    positions = [0] * partitions
    took = []
    for turn in range(number):
        chosen = [(turn * files + n) % partitions for n in range(files)]
        adds, places = [], {}
        for p in chosen:
            adds.append(AddedFile(LAYOUT.output_file(str(p), positions[p]), str(p), 1000, 10, 0.0, STATS))
            positions[p] += 1
            places[str(p)] = Place(positions[p], 0, 1 + positions[p])
        began = time.process_time()
        await table.commit(await table.load(), TableChange(1, places, adds))
        took.append(time.process_time() - began)
    return took


@dataclass
class Turns:
    """CPU seconds of the first turn, and of turns without news and with new files."""

    first: float = 0.0
    idle: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


async def turns(store: Store, partitions: int, files: int, number: int = 10) -> Turns:
    """Turns of a committer: all that it does each interval. `files`: that are new at each busy turn."""
    chain = Chain(store, LAYOUT, partitions)
    home = TableHome(store, LAYOUT, await chain.prepare())
    for p in range(partitions):
        await chain.commit(p, [p])
    await chain.beat()
    table = DeltaTable("delta", {}, SinkPlace("table", "Copy", SYSTEM))
    committer = TableCommitter("table", table, home, schema=SCHEMA, host="h", log=get_logger(__name__))

    async def turn() -> float:
        began = time.process_time()
        await committer.commit()
        return time.process_time() - began

    took = Turns(await turn())
    took.idle = [await turn() for _ in range(number)]
    for turns in range(number):
        for p in range(files):
            await chain.commit((files * turns + p) % partitions, [p], checkpoint=False)
        await chain.beat()
        took.busy.append(await turn())
    positions = {partition: place.position for partition, place in (await table.load()).places.items()}
    if positions != {str(p): end for p, end in enumerate(chain.ends)}:
        raise RuntimeError("the table lacks commits")
    return took

"""From the log through exactly-once output: each kind of handler against a bare loop that does the same work.

Both read the same Parquet files and write the same Parquet. The bare loop commits nothing, retries nothing and syncs
nothing. Runs on one core alternate (A B A B ...); a ratio compares the faster of two neighbouring runs of each, and the
table shows the median. The time of a host includes its start and stop (join the group, check the store, leave); one
column excludes them, as timed with a log of eight events.

`of the floor`: against the sum of the parts that no program in Python can leave out (`benchmarks/floor.py`), timed in
the same run; start and stop are excluded.

The first line has no handler. It is the bare loop with an object per record and a dict per row: the base cost of any
interface by record.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import msgspec
import orjson
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from actorproc import Batch, JsonRows, PartitionContext, PartitionHandler, Processor, Producer, Record, RecordHandler
from benchmarks.floor import floors

SCHEMA = "carrier string, origin string, minutes double, id bigint"
ARROW = pa.schema(
    [
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("minutes", pa.float64()),
        ("id", pa.int64()),
        ("_sequence", pa.int64()),
    ]
)
PARTITIONS = 8


class Emit(PartitionHandler):
    output_schema = SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            event = record.json()
            ctx.emit(
                record,
                {
                    "carrier": event["carrier"],
                    "origin": event["origin"],
                    "minutes": event["minutes"],
                    "id": event["id"],
                },
            )


class EmitTuples(PartitionHandler):
    output_schema = SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            event = record.json()
            ctx.emit(record, (event["carrier"], event["origin"], event["minutes"], event["id"]))


class Lists(PartitionHandler):
    output_schema = SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for records, events in ctx.decode_lists(batch):
            rows = [
                {"carrier": e["carrier"], "origin": e["origin"], "minutes": e["minutes"], "id": e["id"]} for e in events
            ]
            ctx.emit_each(records, rows)


class TypedLists(PartitionHandler):
    output_schema = SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for records, events in ctx.decode_lists(batch, Event):
            ctx.emit_each(records, [(e.carrier, e.origin, e.minutes, e.id) for e in events])


class PerRecord(RecordHandler):
    output_schema = SCHEMA

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, object]:
        event = record.json()
        return {"carrier": event["carrier"], "origin": event["origin"], "minutes": event["minutes"], "id": event["id"]}


class Event(msgspec.Struct):
    carrier: str
    origin: str
    minutes: float
    id: int


class PerTyped(RecordHandler[Event]):
    output_schema = SCHEMA

    def process_record(self, event: Event, ctx: PartitionContext) -> dict[str, object]:
        return {"carrier": event.carrier, "origin": event.origin, "minutes": event.minutes, "id": event.id}


class PerTypedTuples(RecordHandler[Event]):
    output_schema = SCHEMA

    def process_record(self, event: Event, ctx: PartitionContext) -> tuple[object, ...]:
        return event.carrier, event.origin, event.minutes, event.id


class Typed(JsonRows):
    output_schema = SCHEMA


class Columns(PartitionHandler):
    """Columnar by hand: the same parser as the bare loop, rows in and out as a table."""

    output_schema = SCHEMA

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        table = batch.to_arrow()
        ctx.emit_arrow(parsed(table["value"].combine_chunks()).append_column("_sequence", table["_sequence"]))


def parsed(values: pa.BinaryArray) -> pa.Table:
    lines = b"\n".join(values.to_numpy(zero_copy_only=False))
    options = pyarrow.json.ParseOptions(explicit_schema=ARROW.remove(4), unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(pa.BufferReader(lines), read_options=ONE_THREAD, parse_options=options)


ONE_THREAD = pyarrow.json.ReadOptions(use_threads=False, block_size=64 * 2**20)


def log_files(log: Path) -> Iterator[tuple[Path, pa.Table, int]]:
    for path in sorted(log.glob("partition=*/*.parquet")):
        yield path, pq.read_table(path, columns=["value"], use_threads=False, partitioning=None), int(path.stem)


def write(out: Path, path: Path, table: pa.Table) -> None:
    folder = out / path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / path.name, compression="zstd")


def bare_rows(log: Path, out: Path) -> None:
    """What one would write by hand for speed: a loop over orjson that fills columns."""
    for path, table, base in log_files(log):
        carrier: list[str] = []
        origin: list[str] = []
        minutes: list[float] = []
        ids: list[int] = []
        for value in table["value"].to_numpy().tolist():
            event = orjson.loads(value)
            carrier.append(event["carrier"])
            origin.append(event["origin"])
            minutes.append(event["minutes"])
            ids.append(event["id"])
        columns = [carrier, origin, minutes, ids, range(base, base + len(ids))]
        write(out, path, pa.table([pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)], schema=ARROW))


class Bare:
    __slots__ = ("sequence", "value")

    def __init__(self, sequence: int, value: bytes) -> None:
        self.sequence = sequence
        self.value = value


def bare_objects(log: Path, out: Path) -> None:
    """The least that an interface by record can do: an object for each record, a dict for each row."""
    for path, table, base in log_files(log):
        rows: list[dict[str, object]] = []
        sequences: list[int] = []
        for record in map(Bare, range(base, base + len(table)), table["value"].to_numpy().tolist()):
            event = orjson.loads(record.value)
            row = {
                "carrier": event["carrier"],
                "origin": event["origin"],
                "minutes": event["minutes"],
                "id": event["id"],
            }
            rows.append(row)
            sequences.append(record.sequence)
        columns = [pa.array([row[f.name] for row in rows], f.type) for f in ARROW.remove(4)]
        write(out, path, pa.table([*columns, pa.array(sequences, pa.int64())], schema=ARROW))


def bare_columns(log: Path, out: Path) -> None:
    """The same with pyarrow's own JSON reader: no Python per record."""
    for path, table, base in log_files(log):
        rows = parsed(table["value"].combine_chunks())
        write(out, path, rows.append_column("_sequence", pa.array(range(base, base + len(rows)), pa.int64())))


async def through(handler: type[PartitionHandler], log: Path, out: Path) -> None:
    """The product, on the folder store, with its defaults."""
    processor = Processor(handler, source=str(log), container=str(out), name="bench", host="bench")
    await processor.run(until_end=True)


async def make_log(log: Path, events: int) -> None:
    import random

    draw = random.Random(7)
    async with Producer(str(log), partitions=PARTITIONS) as producer:
        for start in range(0, events, 50_000):
            values = [
                orjson.dumps(
                    {
                        "id": i, "carrier": draw.choice(["AA", "UA", "DL", "B6"]),
                        "origin": draw.choice(["JFK", "EWR", "LGA"]),
                        "dest": "LAX", "minutes": float(draw.randint(-20, 300)), "tail": f"N{draw.randint(1, 4000)}",
                        "hour": "2013-01-01T05:00:00Z",
                    }
                )
                for i in range(start, min(start + 50_000, events))
            ]  # fmt: skip
            await producer.send_many(values, keys=[b"%d" % (i % 4000) for i in range(len(values))])


def pinned() -> None:
    """Pin this process to one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def timed(work: Callable[[Path], None], folder: Path) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time: where others use the machine too, the second tells more.

    What was written stays until the end: ext4 without a journal passes over each inode that was freed within a minute,
    so that every file made after a great removal costs up to a millisecond.
    """
    out = Path(tempfile.mkdtemp(dir=folder))
    gc.collect()
    start, cpu = time.perf_counter(), time.process_time()
    work(out)
    return time.perf_counter() - start, time.process_time() - cpu


Work = Callable[[Path, Path], None]


def product(handler: type[PartitionHandler]) -> Work:
    return lambda log, out: anyio.run(through, handler, log, out)


def in_turn(works: list[tuple[Work, Path]], folder: Path) -> list[tuple[float, float]]:
    """The lower of two times each, as `timed`, taken in turn: other users only make a run slower."""
    turns = [[timed(partial(work, log), folder) for work, log in works] for _ in range(2)]
    return [(min(a, b), min(c, d)) for (a, c), (b, d) in zip(*turns, strict=True)]


Turn = list[tuple[float, float]]
"""Times, as `timed`, of a handler, of its bare loop, and of the handler over a log of eight events."""

Case = tuple[str, Work, Work, float]
"""Title, handler, the bare loop that does the same, and the bar."""

CASES: list[Case] = [
    ("(objects and dicts by hand)", bare_objects, bare_rows, 0.0),
    ("ctx.emit of dicts", product(Emit), bare_rows, 0.65),
    ("ctx.emit of tuples", product(EmitTuples), bare_rows, 0.65),
    ("ctx.decode_lists, dicts", product(Lists), bare_rows, 0.75),
    ("ctx.decode_lists of Event, tuples", product(TypedLists), bare_rows, 0.75),
    ("RecordHandler, dicts", product(PerRecord), bare_rows, 0.75),
    ("RecordHandler[Event], dicts", product(PerTyped), bare_rows, 0.75),
    ("RecordHandler[Event], tuples", product(PerTypedTuples), bare_rows, 0.75),
    ("JsonRows", product(Typed), bare_columns, 0.8),
    ("to_arrow to emit_arrow", product(Columns), bare_columns, 0.8),
]


def in_turns(case: Case, log: Path, short: Path, folder: Path, rounds: int, console: Console) -> list[Turn]:
    """Runs the case `rounds` times, and once before to warm caches."""
    title, work, bare, _ = case
    works = [(work, log), (bare, log), (work, short)]
    return [in_turn(works, folder) for _ in track(range(rounds + 1), title, console=console, transient=True)][1:]


def without_ends(turns: list[Turn], clock: int = 0) -> float:
    """The speed as a share of the bare loop's, without start and stop. `clock`: 0 for time, 1 for CPU time."""
    ending = statistics.median(short[clock] for *_, short in turns)
    return statistics.median(bare[clock] / (ours[clock] - ending) for ours, bare, _ in turns)


def run(events: int = 400_000, rounds: int = 5) -> None:
    """Print the table. Pins this process to one core."""
    pinned()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        log = folder / "log"
        anyio.run(make_log, log, events)
        short = folder / "short"
        anyio.run(make_log, short, PARTITIONS)
        table = Table(
            title=f"{events:,} JSON events, {PARTITIONS} partitions, folder store, one core, median of {rounds}"
        )
        for heading in (
            "handler", "events/s", "bare loop, events/s", "ratio", "lowest, highest", "of CPU", "without start, stop",
            "bar", "of the floor",
        ):  # fmt: skip
            table.add_column(heading, justify="left" if heading == "handler" else "right")
        floor = floors(log, folder, rounds)
        for case in CASES:
            title, _, bare, bar = case
            pairs = in_turns(case, log, short, folder, rounds, console)
            ratios = sorted(b[0] / a[0] for a, b, _ in pairs)
            cpu = statistics.median(b[1] / a[1] for a, b, _ in pairs)
            ending = statistics.median(s[0] for *_, s in pairs)
            without = without_ends(pairs)
            ours, theirs = (events / statistics.median(p[i][0] for p in pairs) for i in (0, 1))
            median = statistics.median(ratios)
            seconds = statistics.median(a[0] - (ending if bar else 0.0) for a, *_ in pairs)
            of_floor = floor["columns" if bare is bare_columns else "records"] / seconds
            table.add_row(
                title, f"{ours:,.0f}", f"{theirs:,.0f}", f"[{'green' if median >= bar else 'red'}]{median:.2f}[/]",
                f"{ratios[0]:.2f}, {ratios[-1]:.2f}", f"{cpu:.2f}",
                *((f"{without:.2f} ({ending * 1000:.0f} ms)", f">= {bar}") if bar else ("", "")),
                f"{of_floor:.2f}",
            )  # fmt: skip
        console.print(table)
        speeds = ", ".join(f"{kind} {events / seconds:,.0f} events/s" for kind, seconds in floor.items())
        console.print(f"the floor: {speeds}")

"""Rows to PostgreSQL: the delivery beside the bare client loop that writes the same rows, in the same run.

Delivery: the container has all commits already, and a host delivers them. Its start and stop (with nothing to deliver)
are subtracted. The bare loop reads the same Parquet files, encodes them as CSV with pyarrow, and copies up to 50,000
rows in a transaction, over as many connections, each with its partitions. It keeps no position. `upsert` copies into a
temporary table first. Runs alternate; a ratio compares the faster of two neighbouring runs of each, and the table shows
the median. `a core`: by the CPU time of the process, without the server's.

Handler: until everything is committed, with a sink and without, with a commit each 0.25 s, over a log four times as
long. Latency: records are produced one by one; a row has arrived once another connection, or delta-rs, sees it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from psycopg import sql
from rich.console import Console
from rich.table import Table

from actorproc import Processor
from actorproc.admin.sinks import delete
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from benchmarks.sink_commits import print_commits
from benchmarks.sink_latency import print_latency
from benchmarks.speed import ARROW, PARTITIONS, Emit, Typed, make_log, timed
from tests.connectors.postgres.server import Postgres, postgres

BATCH_ROWS = 50_000
COLUMNS = [*ARROW.names, "_partition"]
TYPES = "carrier text, origin text, minutes double precision, id bigint, _sequence bigint, _partition text"

BAR_APPEND, BAR_UPSERT, BAR_HANDLER, BAR_A_CORE = 0.8, 0.8, 0.85, 100_000

CONNECTIONS = (1, 4)
"""Of the host, and of the bare loop."""

COMMIT_INTERVAL = 0.25
"""Seconds, where a handler runs beside a sink: rows are delivered while others are handled."""

HANDLER_LOGS = 4
"""A run of a second would measure the start of the sink."""

Times = tuple[float, float]
"""Seconds by the clock, and of CPU time."""


def execute(server: Postgres, *statements: Any) -> list[tuple[Any, ...]]:
    """The rows of the last statement."""
    found: list[tuple[Any, ...]] = []
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
            found = cursor.fetchall() if cursor.description else []
    return found


# The bare loops


def bare(server: Postgres, container: Path, table: str, *, key: str | None, connections: int) -> None:
    """Copy all rows of the output, 50,000 in a transaction; with `key`, the newest row of each wins."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE TABLE {} (" + TYPES + ")").format(sql.Identifier(table)))
        if key:
            unique = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})")
            connection.execute(unique.format(sql.Identifier(table), sql.Identifier(key)))
    folders = sorted((container / "bench" / "output").iterdir())
    with ThreadPoolExecutor(connections) as pool:
        for done in [pool.submit(_bare, server, folders[n::connections], table, key) for n in range(connections)]:
            done.result()


def _bare(server: Postgres, folders: Sequence[Path], table: str, key: str | None) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    into = sql.Identifier("incoming" if key else table)
    copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT CSV)").format(into, names)
    with psycopg.connect(server.url) as connection:
        if key:
            connection.execute("CREATE TEMP TABLE incoming (" + TYPES + ") ON COMMIT DELETE ROWS")
            connection.commit()
        for rows in batches(folders):
            sink = pa.BufferOutputStream()
            pa.csv.write_csv(rows, sink, pa.csv.WriteOptions(include_header=False, quoting_style="needed"))
            with connection.cursor() as cursor:
                with cursor.copy(copy) as stream:
                    stream.write(sink.getvalue().to_pybytes())
                if key:
                    cursor.execute(_merge(table, key))
            connection.commit()


def _merge(table: str, key: str) -> sql.Composed:
    sets = sql.SQL(", ").join(
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in COLUMNS if name != key
    )
    return sql.SQL(
        "INSERT INTO {} SELECT DISTINCT ON ({key}) * FROM incoming ORDER BY {key}, _sequence DESC "
        "ON CONFLICT ({key}) DO UPDATE SET {}"
    ).format(sql.Identifier(table), sets, key=sql.Identifier(key))


def batches(folders: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of these partitions, cut as a delivery cuts them."""
    for folder in folders:
        pending: list[pa.Table] = []
        for path in sorted(folder.glob("*.parquet")):
            table = pq.read_table(path, partitioning=None).select(ARROW.names)
            if pending and sum(map(len, pending)) + len(table) > BATCH_ROWS:
                yield pa.concat_tables(pending)
                pending = []
            pending.append(table.append_column("_partition", pa.array([folder.name] * len(table))))
        if pending:
            yield pa.concat_tables(pending)


# The product


def delivered(server: Postgres, log: Path, container: Path, table: str, options: Mapping[str, Any]) -> None:
    """A host that delivers what is committed, and ends."""

    async def run() -> None:
        sink = {"url": server.url, "table": table, **options}
        await Processor(
            Typed, source=str(log), container=str(container), name="bench", host="bench", sinks={table: sink}
        ).run(until_end=True)

    anyio.run(run)


def committed(log: Path, container: Path) -> None:
    """Commit everything, without a sink."""

    async def run() -> None:
        await Processor(Typed, source=str(log), container=str(container), name="bench", host="bench").run(
            until_end=True
        )

    anyio.run(run)


async def forget(container: Path, name: str) -> None:
    """Forget a sink, so that the hosts of later rounds do not ask for it."""
    async with open_store(str(container)) as store:
        await delete(store, ProcessorLayout("bench"), name)


class Deliveries:
    """Delivery against the bare loop."""

    def __init__(self, server: Postgres, folder: Path, log: Path, rows: int) -> None:
        self._server, self._folder, self._log, self._rows = server, folder, log, rows
        self._container = folder / "container"
        committed(log, self._container)
        self._runs = 0

    def measure(self, rounds: int, *, key: str | None, connections: int) -> list[str]:
        """A line of the table. Raises UsageError: the sink cannot do it."""
        options = {"connections": connections} | ({"mode": "upsert", "key": [key]} if key else {})
        ratios, of_cpu, speeds, bare_speeds, a_core = [], [], [], [], []
        for _ in range(rounds):
            turns = [(*self._ours(options), self._bare(key, connections)) for _ in range(2)]
            whole, empty, loop = ([min(part) for part in zip(*runs, strict=True)] for runs in zip(*turns, strict=True))
            ours, cpu = whole[0] - empty[0], whole[1] - empty[1]
            theirs, their_cpu = loop
            ratios.append(theirs / ours)
            of_cpu.append(their_cpu / cpu)
            speeds.append(self._rows / ours)
            bare_speeds.append(self._rows / theirs)
            a_core.append(self._rows / cpu)
        bar = BAR_UPSERT if key else BAR_APPEND
        middle = statistics.median
        name = f"{'upsert by key' if key else 'append'}, connections: {connections}"
        return [
            name, f"{middle(speeds):,.0f}", f"{middle(bare_speeds):,.0f}",
            f"{middle(ratios):.2f}", f"{min(ratios):.2f}, {max(ratios):.2f}", f"{middle(of_cpu):.2f}",
            f"{middle(a_core):,.0f}", f"{bar:g}; {BAR_A_CORE:,} a core",
        ]  # fmt: skip

    def _ours(self, options: Mapping[str, Any]) -> tuple[Times, Times]:
        """With everything to deliver, and with nothing."""
        name = self._name("ours")
        whole = self._timed(lambda: delivered(self._server, self._log, self._container, name, options), name)
        empty = timed(lambda _: delivered(self._server, self._log, self._container, name, options), self._folder)
        anyio.run(forget, self._container, name)
        return whole, empty

    def _bare(self, key: str | None, connections: int) -> Times:
        name = self._name("bare")
        return self._timed(lambda: bare(self._server, self._container, name, key=key, connections=connections), name)

    def _timed(self, work: Callable[[], None], table: str) -> Times:
        taken = timed(lambda _: work(), self._folder)
        ((count,),) = execute(self._server, sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
        if count != self._rows:
            raise RuntimeError(f"table {table} has {count} rows, not {self._rows}")
        return taken

    def _name(self, kind: str) -> str:
        self._runs += 1
        execute(self._server, "CHECKPOINT")
        return f"{kind}_{self._runs}"


# The handler


def handler_speed(server: Postgres, folder: Path, log: Path, rows: int, *, sink: str | None) -> tuple[float, float]:
    """Seconds until all is committed, and until all is delivered."""

    async def run() -> tuple[float, float]:
        sinks = {sink: {"url": server.url, "table": sink}} if sink else {}
        out = tempfile.mkdtemp(dir=folder)
        processor = Processor(
            Emit, source=str(log), container=out, name="bench", host="bench", sinks=sinks,
            settings=Settings(commit_interval=COMMIT_INTERVAL),
        )  # fmt: skip
        began = time.perf_counter()
        done = began
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(processor.run, until_end=True))
            while processor.statistics().counts.rows < rows:
                await anyio.sleep(0.005)
            done = time.perf_counter()
        return done - began, time.perf_counter() - began

    return anyio.run(run)


def run(rows: int = 400_000, rounds: int = 3, seconds: float = 20.0) -> None:
    """Print the tables."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name, postgres() as server:
        folder = Path(name)
        log = folder / "log"
        anyio.run(make_log, log, rows)
        deliveries = Deliveries(server, folder, log, rows)
        table = Table(title=f"{rows:,} rows, {PARTITIONS} partitions, PostgreSQL on this machine, median of {rounds}")
        for heading in ("delivery", "rows/s", "bare loop", "ratio", "lowest, highest", "of CPU", "a core", "bar"):
            table.add_column(heading, justify="left" if heading == "delivery" else "right")
        for connections in CONNECTIONS:
            table.add_row(*deliveries.measure(rounds, key=None, connections=connections))
        try:
            for connections in CONNECTIONS:
                table.add_row(*deliveries.measure(rounds, key="id", connections=connections))
        except UsageError as why:
            console.print(f"upsert by key is not measured: {why}")
        console.print(table)
        long_log = folder / "long-log"
        anyio.run(make_log, long_log, HANDLER_LOGS * rows)
        _print_handler(console, server, folder, long_log, HANDLER_LOGS * rows, rounds)
        print_latency(console, server, folder, seconds)
        print_commits(console, folder)


def _print_handler(console: Console, server: Postgres, folder: Path, log: Path, rows: int, rounds: int) -> None:
    ratios, of_cpu, speeds, behind = [], [], [], []
    for number in range(rounds):
        start = time.process_time()
        without, _ = handler_speed(server, folder, log, rows, sink=None)
        middle = time.process_time()
        done, all_there = handler_speed(server, folder, log, rows, sink=f"handled_{number}")
        ratios.append(without / done)
        of_cpu.append((middle - start) / (time.process_time() - middle))
        speeds.append((rows / without, rows / done))
        behind.append(all_there - done)
    table = Table(
        "handler", "events/s alone", "with a sink", "ratio", "lowest, highest", "of CPU", "sink behind, s", "bar"
    )
    alone, beside = (statistics.median(each) for each in zip(*speeds, strict=True))
    table.add_row(
        "ctx.emit of dicts", f"{alone:,.0f}", f"{beside:,.0f}", f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f}, {max(ratios):.2f}", f"{statistics.median(of_cpu):.2f}", f"{statistics.median(behind):.1f}",
        f"{BAR_HANDLER:g}",
    )  # fmt: skip
    console.print(table)

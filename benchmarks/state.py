"""Keyed state by the number of keys held: a get and a set, a commit of 10,000 keys, a merge, a restore; and columns.

CPU times of one process, on a folder. A commit and its bytes should not grow with the keys held.

Then the running total of each key, from a topic of a real Kafka broker to durable rows: actorproc against other Python
libraries, as the benchmark `kafka` compares them. Every program keeps its totals so that they survive the process:
Quix Streams in RocksDB and a changelog topic, Bytewax in SQLite, Faust in memory and a changelog topic, actorproc in
the commit. The bar is for the same handler without state. Needs Java and Maven.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from actorproc.handler.keyed_state import AttemptState, KeyedState, StateChanges, StateKind, StateKinds
from actorproc.output.attachments import Attachment, put_attachments
from actorproc.state.partition_state import PartitionState
from actorproc.storage.names import STATE, ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store
from benchmarks.kafka import PARTITIONS, TOPIC, Measured, Program, fill, measure
from benchmarks.kafka_programs.task import Task
from tests.connectors.kafka.server import kafka

CHANGED = 10_000  # keys in a commit
COMMITS = 32  # with a merge after each 16
LAYOUT = ProcessorLayout("bench")


PROGRAMS = (
    Program("Bytewax, recovery", "bytewax", "totals"),
    Program("Quix Streams, at least once", "quix", "totals", 0.5),
    Program("Faust", "faust", "totals", 0.05),
    Program("actorproc, the same without state", "ours", "keyed"),
    Program("actorproc, exactly once", "ours", "totals", bar=0.6),
)
"""The one without state comes right before that with state."""


def run(
    sizes: tuple[int, ...] = (100_000, 1_000_000, 3_000_000),
    events: int = 1_000_000,
    keys: int = 100_000,
    rounds: int = 3,
) -> None:
    """Print a row for each number of keys, and one for each program."""
    table = Table("keys", "get + set, µs", "commit, ms", "commit, KiB", "merge, ms", "restore, s", title="keyed state")
    for keys in sizes:
        table.add_row(f"{keys:,}", *anyio.run(_measured, keys))
    Console().print(table)
    Console().print(_columns())
    Console().print(_totals(events, keys, rounds))


def _totals(events: int, keys: int, rounds: int) -> Table:
    """The speed of each program."""
    console, found = Console(), dict[Program, Measured]()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name, kafka(Path(name)) as broker:
        fill(broker, events, keys)
        for program in PROGRAMS:
            task = Task(broker.address, TOPIC, PARTITIONS, events, "")
            found[program] = measure(program, task, Path(name), rounds, console)
    stateless = next(one.speed for program, one in found.items() if program.variant == "keyed")
    best = max(one.speed for program, one in found.items() if program.is_peer)
    title = f"running totals of {keys:,} keys, {events:,} events, one core, median of {rounds}"
    table = Table("", "events/s", "best peer", "without state", "bar", "CPU per event", "peak memory", title=title)
    for program, one in found.items():
        ours = program.bar is not None
        table.add_row(
            program.title, f"{one.speed:,.0f}", f"{one.speed / best:.2f}" if ours else "",
            f"{one.speed / stateless:.2f}" if ours else "", f">= {program.bar:g}" if program.bar else "",
            f"{one.cpu * 1e9:,.0f} ns", f"{one.memory / 2**20:,.0f} MiB",
        )  # fmt: skip
    return table


async def _measured(keys: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(folder) as store:
            return await _figures(store, keys)


async def _figures(store: Store, keys: int) -> list[str]:
    first = new_state(store)
    size, _ = await commit(store, first, 0, range(keys))
    gc.collect()
    began = time.process_time()
    state = new_state(store)
    await state.load(first.manifest)
    state.restored(0)
    restore = time.process_time() - began
    calls, commits, merges = [], [], []
    for number in range(1, COMMITS + 1):
        began = time.process_time()
        changes = _changes(state, [(97 * i + number) % keys for i in range(CHANGED)])
        calls.append((time.process_time() - began) / CHANGED)
        size, took = await commit(store, state, number, changes)
        commits.append(took)
        if number % 16 == 0:
            began = time.process_time()
            await state.merge(number + 1)
            merges.append(time.process_time() - began)
    return [
        f"{statistics.median(calls) * 1e6:.2f}", f"{statistics.median(commits) * 1e3:.1f}", f"{size / 1024:.0f}",
        f"{max(merges) * 1e3:.0f}", f"{restore:.2f}",
    ]  # fmt: skip


def new_state(store: Store) -> PartitionState:
    return PartitionState(store, LAYOUT, "0", limit=2**40)


def _changes(state: PartitionState, numbers: list[int] | range) -> StateChanges:
    """A count for each key, as a handler makes it."""
    attempt = AttemptState(state.held)
    view = attempt.view("")
    for number in numbers:
        key = f"account {number}"
        view.set(key, view.get(key, 0) + 1)
    return attempt.take()


async def commit(store: Store, state: PartitionState, number: int, changes: StateChanges | range) -> tuple[int, float]:
    """Bytes and CPU seconds of a commit's delta."""
    changes = _changes(state, changes) if isinstance(changes, range) else changes
    began = time.process_time()
    state.add(changes)
    delta = state.delta(float(number))
    assert delta is not None
    put_id = store.clock.nonce()
    await put_attachments(store, LAYOUT, "0", number, put_id, (Attachment(STATE, delta.body),))
    state.committed(number, put_id, delta)
    return len(delta.body), time.process_time() - began


class _Total(msgspec.Struct):
    cents: int
    payments: int


def _columns(rows: int = 50_000) -> Table:
    """A join and an update of a table, beside a get and a set for each of its rows. Half of the keys exist."""
    payments = pa.table({"account": [f"account {n}" for n in range(rows)], "paid": np.arange(rows)})
    kinds, held = StateKinds({"": StateKind(_Total)}), dict[bytes, bytes]()

    def measured(work: Callable[[KeyedState, pa.Table], None]) -> float:
        times = []
        for _ in range(7):
            gc.collect()
            view = AttemptState(lambda _: held, kinds).view("")
            began = time.process_time()
            work(view, payments)
            times.append((time.process_time() - began) / rows * 1e6)
        return statistics.median(times)

    attempt = AttemptState(lambda _: {}, kinds)
    _by_record(attempt.view(""), payments.slice(0, rows // 2))
    held.update((key, value) for key, value in attempt.take()[""].values.items() if value is not None)
    table = Table("state in columns, struct of two numbers", "µs a row")
    table.add_row("get + set", f"{measured(_by_record):.2f}")
    table.add_row("join + update", f"{measured(_by_column):.2f}")
    return table


def _by_record(view: KeyedState, payments: pa.Table) -> None:
    for account, paid in zip(payments["account"].to_pylist(), payments["paid"].to_pylist(), strict=True):
        before = view.get(account)
        view.set(account, _Total(before.cents + paid, before.payments + 1) if before else _Total(paid, 1))


def _by_column(view: KeyedState, payments: pa.Table) -> None:
    held = view.join(payments, on="account")
    cents = pc.add(pc.coalesce(held["cents"], 0), held["paid"])
    count = pc.add(pc.coalesce(held["payments"], 0), 1)
    view.update(pa.table({"account": held["account"], "cents": cents, "payments": count}), on="account")

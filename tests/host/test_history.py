"""The history that hosts write, and the last day that is made of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import structlog

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin.history import HistoryReader, Series, starts
from actorproc.config.settings import Settings
from actorproc.errors import StoreRefused
from actorproc.group.history import Life, telling_settings
from actorproc.runtime.nudge import Nudges
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

HOUR = 3_600.0
SLOW: dict[str, Any] = {
    "lease_renew_interval": 500, "lease_acquire_interval": 500, "lease_expiration_interval": 2_000, "poll_interval": 300
}  # fmt: skip
"""Timers that make few requests in a long time."""


class Refuses(PartitionHandler):
    output_schema = "n bigint"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.value == b"x":
                ctx.dead_letter(record, "x")


def processor(
    backend: MemoryStore, source: MemorySource, clock: VirtualClock, host: str = "a", **more: Any
) -> Processor:
    store = more.pop("store", None) or Store(backend, clock=clock)
    return Processor(
        Refuses, name="p", host=host, source=source, container=store, clock=clock, nudges=Nudges(),
        **{**SLOW, "dead_letter_limit": 1, **more},
    )  # fmt: skip


async def read(backend: MemoryStore, clock: VirtualClock, partition: str | None = None) -> Series:
    return await HistoryReader(Store(backend, clock=clock), ProcessorLayout("p")).read(partition)


def known(series: Series) -> list[tuple[int, int | None, int, int]]:
    """(step from the end, lag, records, dead letters) of the steps of which something is known."""
    steps = enumerate(zip(series.lag, series.records, series.dead_letters, strict=True))
    return [(n - len(series.lag), *values) for n, values in steps if values != (None, 0, 0)]


def test_the_last_day_has_lag_records_dead_letters_and_owner_of_each_step() -> None:
    async def scenario() -> tuple[Series, Series]:
        clock = VirtualClock("history")
        backend, source = MemoryStore(clock=clock), MemorySource(2)
        async with processor(backend, source, clock):
            await anyio.sleep(700)
            source.append("0", [b"x", b"1", b"2"])
            await anyio.sleep(HOUR - 700)
            return await read(backend, clock), await read(backend, clock, "0")

    total, one = run(scenario())
    for series in (total, one):
        assert [values[1:] for values in known(series)][-3:] == [(0, 0, 0)] * 3
        assert [values[1:] for values in known(series) if values[2]] == [(0, 3, 1)]
        assert len(series.lag) == 288
    assert 10 <= len(known(total)) <= 12
    ((_, owner),) = one.owners
    assert owner == "a"


def test_a_backlog_that_ended_before_the_first_sample_is_shown() -> None:
    """A host that was killed has written no sample of it."""

    async def scenario() -> Series:
        clock = VirtualClock("history")
        backend, source = MemoryStore(clock=clock), MemorySource(1)
        source.append("0", [b"1"] * 40)
        async with processor(backend, source, clock):
            await anyio.sleep(100)
        source.append("0", [b"1"] * 5_000)
        async with processor(backend, source, clock):
            await anyio.sleep(HOUR)
            return await read(backend, clock)

    series = run(scenario())
    lags = [values[1] for values in known(series)]
    assert (max(lag or 0 for lag in lags), lags[-1]) == (5_000, 0)
    assert [mark.text for mark in series.marks] == ["a started", "a restarted"]


def test_a_partition_that_moves_has_both_owners_and_both_starts_are_marks() -> None:
    async def scenario() -> Series:
        clock = VirtualClock("history")
        backend, source = MemoryStore(clock=clock), MemorySource(1)
        async with processor(backend, source, clock):
            await anyio.sleep(HOUR)
        async with processor(backend, source, clock, "b", commit_interval=9, app_version="2"):
            await anyio.sleep(HOUR)
            return await read(backend, clock, "0")

    series = run(scenario())
    assert [host for _, host in series.owners] == ["a", "b"]
    assert [mark.text for mark in series.marks] == [
        "a started", "b started; version: none → 2; commit_interval: 5 → 9"
    ]  # fmt: skip


@pytest.mark.slow
def test_samples_and_files_are_kept_for_a_day() -> None:
    async def scenario() -> tuple[list[int], int, int]:
        clock = VirtualClock("history")
        backend, source = MemoryStore(clock=clock), MemorySource(1)
        async with processor(backend, source, clock, "gone"):
            await anyio.sleep(HOUR)
        sizes = []
        async with processor(backend, source, clock, history_interval=600):
            for hours in (20, 5, 20):
                await anyio.sleep(hours * HOUR)
                sizes.append(sum(entry.size for entry in (await backend.list("p/history/")).entries))
            files = (await backend.list("p/history/")).entries
            return sizes, len(files), len(known(await read(backend, clock)))

    sizes, files, steps = run(scenario())
    assert files == 1, "that of the host that is gone was deleted"
    assert 142 <= steps <= 144
    assert sizes[2] < 1.2 * sizes[0]


def test_a_history_that_cannot_be_written_is_logged_and_holds_nothing_up() -> None:
    class Refusing(Store):
        async def put(self, key: str, body: bytes) -> str:
            if "/history/" in key:
                raise StoreRefused(f"{key}: AccessDenied")
            return await super().put(key, body)

    async def scenario() -> int:
        clock = VirtualClock("history")
        backend, source = MemoryStore(clock=clock), MemorySource(1)
        async with processor(backend, source, clock, store=Refusing(backend, clock=clock)) as running:
            await anyio.sleep(HOUR)
            source.append("0", [b"1"])
            await anyio.sleep(HOUR)
            return running.statistics().counts.records

    with structlog.testing.capture_logs() as logs:
        assert run(scenario()) == 1
    assert {entry["log_level"] for entry in logs if entry["event"] == "history.failed"} == {"warning"}


def test_no_text_of_the_user_is_in_a_history() -> None:
    settings = Settings(
        http_token="0123456789abcdef", source_options={"sasl.password": "x"}, commit_interval=9,
        on_out_of_range="latest", schema_registry="http://user:secret@host", decode_schema="secret",
    )  # fmt: skip
    assert telling_settings(settings) == {"commit_interval": 9.0, "on_out_of_range": "latest"}


def test_hosts_of_one_deployment_are_one_mark_with_the_changes() -> None:
    def life(host: str, started: float, **changes: Any) -> Life:
        return Life(**{"host": host, "started": started, "interval": 300.0, "release": "1", "settings": {}, **changes})

    old = [life("a", 0), life("b", 10), life("c", 20, settings={"commit_rows": 7})]
    new = [life(host, 5_000 + n, release="2") for n, host in enumerate("abcd")]
    marks = starts([*old, *new], 300)
    assert [(mark.time, mark.text) for mark in marks] == [
        (0, "a, b, c started; commit_rows: 1000000 → 7"),
        (5_000, "a, b, c and 1 more started; actorproc: 1 → 2; commit_rows: 7 → 1000000"),
    ]


def test_a_host_that_restarts_soon_after_other_starts_has_its_own_mark() -> None:
    lives = [Life(host, started, 300.0, "1") for host, started in [("a", 0), ("b", 5), ("a", 200), ("c", 1_000)]]
    assert [(mark.time, mark.text) for mark in starts(lives, 300)] == [
        (0, "a, b started"), (200, "a restarted"), (1_000, "c started"),
    ]  # fmt: skip

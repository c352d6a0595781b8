"""Logging in an application: as it is configured, and never to stdout."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import pytest
import structlog

from actorproc import Batch, Capture, Decision, PartitionContext, PartitionHandler, PartitionInfo, Processor, Producer
from actorproc.config.settings import Settings
from actorproc.runtime.logger import get_logger
from actorproc.simulation.clock import VirtualClock
from actorproc.simulation.loop import run as virtual
from actorproc.sources import LogSource
from actorproc.storage.names import log_hint
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing.memory_source import MemorySource

EMBEDDED = """
import anyio
from actorproc import Capture, Processor
from actorproc.stores.memory import MemoryStore
from actorproc.storage.store import Store
from actorproc.testing.memory_source import MemorySource

anyio.run(lambda: Processor(Capture, source=MemorySource(2), container=Store(MemoryStore())).run(until_end=True))
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )


def test_without_configuration_only_warnings_go_to_stderr(tmp_path: Path) -> None:
    program = "from actorproc.runtime.logger import get_logger\nlog = get_logger('actorproc.x').bind(host='a')\n"
    done = run(program + "log.info('x.quiet')\nlog.warning('x.loud', why='100 %s')\n", tmp_path)
    assert (done.stdout, done.stderr) == ("", "x.loud host='a' why='100 %s'\n")


def test_a_healthy_processor_logs_nothing_without_configuration(tmp_path: Path) -> None:
    done = run(EMBEDDED, tmp_path)
    assert (done.stdout, done.stderr) == ("", "")


def test_logging_gets_level_name_fields_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert not structlog.is_configured()
    log = get_logger("actorproc.x")
    with caplog.at_level(logging.INFO, "actorproc"):
        try:
            raise ValueError("poison")
        except ValueError:
            log.bind(partition="3").exception("x.failed")
        log.info("x.opened", number=1)
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("actorproc.x", "ERROR", "x.failed partition='3'"),
        ("actorproc.x", "INFO", "x.opened number=1"),
    ]
    assert "ValueError: poison" in caplog.text


def test_a_configured_structlog_gets_the_events() -> None:
    log = get_logger("actorproc.x")
    with structlog.testing.capture_logs() as logs:
        log.bind(partition="3").debug("x.opened", number=1)
    assert logs == [{"event": "x.opened", "partition": "3", "number": 1, "log_level": "debug"}]


class Troubled(PartitionHandler):
    """Partition 0 fails as it opens, once; of each partition the last record is bad; the last one waits for `go_on`."""

    output_schema = "n long"
    failed = False
    go_on: anyio.Event

    async def opened(self, ctx: PartitionInfo) -> None:
        if ctx.partition == "0" and not self.failed:
            type(self).failed = True
            raise OSError("the database is away")

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        if ctx.partition == "3":
            await self.go_on.wait()
        for record in batch:
            ctx.emit(record, {"n": record.json()})

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision:
        return cast(Decision, "whatever")


def test_every_event_names_processor_host_partition_and_epoch() -> None:
    async def main() -> None:
        Troubled.go_on = anyio.Event()
        memory, source = MemoryStore(clock=VirtualClock("store")), MemorySource(4)
        for partition in range(4):
            source.append(str(partition), [b"1", b"2", b"bad"])

        def host(name: str) -> Processor:
            clock = VirtualClock(name)
            return Processor(Troubled, source=source, container=Store(memory, clock=clock), host=name, clock=clock,
                             delivery="at-most-once", dead_letter_limit=1, nudge_host="no such host")  # fmt: skip

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(host("a").run, until_end=True))
            await anyio.sleep(10)
            async with host("b") as b:
                while (seen := b.statistics()) is None or not seen.partitions:
                    await anyio.sleep(1)
                Troubled.go_on.set()
                await anyio.sleep(60)

    with structlog.testing.capture_logs() as logs:
        virtual(main())
    assert {log["event"] for log in logs} >= {
        "processor.started", "processor.dead_letters", "processor.reached_end", "processor.stopped", "nudge.off",
        "group.written", "group.move", "supervisor.leaving", "partition.opened", "partition.failed",
        "partition.not_stopped", "partition.closed",
    }  # fmt: skip
    assert {(log.get("processor"), log.get("host")) for log in logs} == {("Troubled", "a"), ("Troubled", "b")}
    for log in logs:
        if log["event"].startswith("partition.") or log["event"] == "group.move":
            assert log.keys() >= {"partition", "epoch"}, log


def test_events_of_the_built_in_log_name_the_reading_processor() -> None:
    async def main() -> None:
        clock = VirtualClock("store")
        log, container = Store(MemoryStore(clock=clock), clock=clock), Store(MemoryStore(clock=clock), clock=clock)
        async with Producer(log, partitions=2, clock=clock) as producer:
            await producer.send("1")
        await log.put(log_hint("junk"), b"no head")
        source = LogSource(log, settings=Settings(), clock=clock)
        async with Processor(
            Capture, source=source, container=container, host="a", clock=clock, nudge_host="no such host"
        ):
            await anyio.sleep(5)
            get_logger("app").warning("app.event")

    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        virtual(main())
    (bad,) = [log for log in logs if log["event"] == "log.hint_corrupt"]
    assert (bad["processor"], bad["host"]) == ("Capture", "a")
    (own,) = [log for log in logs if log["event"] == "app.event"]
    assert own.keys() == {"event", "log_level"}

"""Runs commands: in this process where that is enough, as processes where it is not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
import structlog
import typer
from typer.testing import CliRunner

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.cli import app
from actorproc.runtime.logger import set_up_now

Run = Callable[..., Any]

QUICK: dict[str, Any] = {
    "lease_acquire_interval": 0.3,
    "lease_renew_interval": 0.2,
    "lease_expiration_interval": 1.5,
    "rebalance_delay": 0.2,
    "commit_interval": 0.1,
    "retry_backoff": 0.001,
}
QUICK_OPTIONS = [part for name, value in QUICK.items() for part in ("--set", f"{name}={value}")]

APP = """
from actorproc import PartitionHandler

class Delays(PartitionHandler):
    output_schema = "tail string, delay double"

    async def process(self, batch, ctx):
        for record in batch:
            flight = record.json()
            ctx.emit(record, {"tail": flight["tail"], "delay": float(flight["delay"])})

class Silent(PartitionHandler):
    pass

class BadSchema(PartitionHandler):
    output_schema = "tail strin"

    async def process(self, batch, ctx):
        pass
"""


class Delays(PartitionHandler):
    output_schema = "tail string, delay double"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            flight = record.json()
            ctx.emit(record, {"tail": flight["tail"], "delay": float(flight["delay"])})


def every_command() -> list[tuple[list[str], Any]]:
    """The root, each group and each command, with the words that name it."""

    def below(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        yield path, command
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                yield from below([*path, name], command.get_command(None, name))

    return list(below([], typer.main.get_command(app)))


def events(count: int) -> list[bytes]:
    """Flights; every tenth has no delay, which is poison for `Delays`."""
    flights = [{"tail": f"N{n % 7}", **({"delay": n} if n % 10 else {})} for n in range(count)]
    return [orjson.dumps(flight) for flight in flights]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command in this process."""
    for name in [name for name in os.environ if name.startswith("ACTORPROC_")]:
        monkeypatch.delenv(name)
    runner = CliRunner()
    yield lambda *arguments, **how: runner.invoke(app, [str(argument) for argument in arguments], **how)
    set_up_now()  # or a later test would do it
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log `events` (200 flights in 4 partitions) and the container `state`, all of it processed by
    `Delays`. For tests that only read."""
    folder = tmp_path_factory.mktemp("state")
    anyio.run(processed, folder)
    return folder


@pytest.fixture
def place(state: Path) -> list[object]:
    return ["--name", "Delays", "--container", state / "state"]


async def processed(folder: Path, **options: Any) -> None:
    async with Producer(str(folder / "events"), partitions=4) as producer:
        flights = events(200)
        await producer.send_many(flights, keys=[orjson.loads(flight)["tail"] for flight in flights])
    processor = Processor(
        Delays, source=str(folder / "events"), container=str(folder / "state"), host="tester",
        **(QUICK | {"commit_interval": 60} | options),  # one commit for each partition, however slow the machine is
    )  # fmt: skip
    await processor.run(until_end=True)


def actorproc(*arguments: object, cwd: Path, timeout: float = 120, **how: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a process."""
    command = [sys.executable, "-m", "actorproc", *map(str, arguments)]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False, **how
    )

"""The programs of the processes: a host is `actorproc serve`, a producer notes each acknowledgement.

Both are forked from a server that has imported everything, so that a start takes milliseconds and trouble can be dense.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from pathlib import Path

import anyio
import pyarrow as pa
import structlog

from actorproc import Processor, Producer
from actorproc.cli import main, serve
from actorproc.cli.logging import set_up_logging
from actorproc.group.format_versions import FORMAT_VERSIONS
from actorproc.group.membership import GroupDocument
from actorproc.output.chain import Commit
from actorproc.output.checkpoint import Checkpoint
from actorproc.produce.batches import Deliveries
from actorproc.retention.boundary import RETENTION
from actorproc.stores import s3
from tests.chaos import workload

PRELOADED = (serve, s3, workload, pa.array([1]))  # late imports of a host; the last makes pyarrow look for pandas

BURST = 16  # records that share a key
LINGER = 0.1  # seconds
HOUR = 20.0  # seconds; no process is paused for half as long
MANY_BURSTS = 50  # under way at once


def host(folder: str, output: str, environment: dict[str, str], arguments: Sequence[str]) -> None:
    """Run the command line in `folder`, its output appended to the file `output`."""
    make_independent(folder, output, environment)
    sys.argv = ["actorproc", *arguments]
    main()


def earlier_host(folder: str, output: str, environment: dict[str, str], arguments: Sequence[str]) -> None:
    """A host of the version before: it announces the format version before the newest one, and reads no later one."""
    Processor.format_versions = FORMAT_VERSIONS._replace(highest=FORMAT_VERSIONS.highest - 1)
    for kind in (Checkpoint, Commit, GroupDocument):
        kind.newest_format_version = min(kind.newest_format_version, Processor.format_versions.highest)
    host(folder, output, environment, arguments)


def hasty_command(folder: str, output: str, environment: dict[str, str], arguments: Sequence[str]) -> None:
    """A command line for which an hour, after which a file may be deleted, lasts `HOUR` seconds."""
    for name in ("actorproc.admin.trim", "actorproc.admin.compact", "actorproc.sinks.tables.open_tables"):
        module = vars(import_module(name))
        assert module["RETENTION"] == RETENTION
        module["RETENTION"] = HOUR
    host(folder, output, environment, arguments)


def producer(
    folder: str, output: str, environment: dict[str, str], log: str, partitions: int, name: str, acks: str, rate: float
) -> None:
    """Send records until SIGTERM, `rate` a second, and append each acknowledged one to the file `acks`.

    Its lines are `number partition sequence`; `done count` ends it after a stop in good order.
    """
    make_independent(folder, output, environment)
    if log.startswith("kafka:"):
        from tests.chaos import topic

        brokers, _, name_of_topic = log.removeprefix("kafka://").partition("/")
        topic.produce(brokers, name_of_topic, name, Path(acks), rate)
        return
    if log.startswith("amqp:"):
        from tests.chaos import queues

        queues.produce(log, name, Path(acks), rate)
        return
    set_up_logging("info")
    structlog.contextvars.bind_contextvars(host=name)
    anyio.run(_produce, log, partitions, name, Path(acks), rate)


async def _produce(url: str, partitions: int, name: str, acks: Path, rate: float) -> None:
    sent = 0
    with acks.open("ab", buffering=0) as file:
        limiter = anyio.Semaphore(MANY_BURSTS)

        async def acknowledge(first: int, deliveries: Deliveries) -> None:
            places = await deliveries
            limiter.release()
            # One write: a kill leaves all of these lines, or the first few and part of one.
            file.write(b"".join(b"%d %s %d\n" % (n, p.encode(), s) for n, (p, s) in enumerate(places, first)))

        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async with (
                Producer(url, partitions=partitions, linger=LINGER) as target,
                anyio.create_task_group() as tasks,
            ):
                with anyio.CancelScope() as sending:
                    tasks.start_soon(_stop_on_signal, signals, sending)
                    while True:
                        await limiter.acquire()
                        numbers = range(sent, sent + BURST)
                        values = [workload.value_of(name, number) for number in numbers]
                        with anyio.CancelScope(shield=True):
                            keys = [workload.key_of(name, number) for number in numbers]
                            tasks.start_soon(acknowledge, sent, await target.send_many(values, keys=keys))
                        sent += BURST
                        await anyio.sleep(BURST / rate)
        file.write(b"done %d\n" % sent)


async def _stop_on_signal(signals: AsyncIterator[signal.Signals], sending: anyio.CancelScope) -> None:
    async for _ in signals:
        sending.cancel()
        return


def make_independent(folder: str, output: str, environment: dict[str, str]) -> None:
    """Make this process independent: session, working directory, output. It dies with the process that forked it."""
    os.setsid()  # Ctrl-C is for the chaos alone
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.update(environment)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)

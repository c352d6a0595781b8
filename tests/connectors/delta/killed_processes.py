"""Processes that work on a Delta table until they are killed: committers, and an operator who compacts and trims.

One process imports everything, and forks the others: a start takes 20 ms. All of them end with it. Its hour is short:
what the product keeps for an hour, these processes keep for `HOUR`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from random import Random

import anyio

from actorproc.admin.compact import compact
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.connectors.delta import DeltaTable, log, sink
from actorproc.errors import ActorprocError, StoreUnavailable
from actorproc.output.source_identity import dataset_identity
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.logger import get_logger
from actorproc.sinks.protocol import SinkMoved, SinkPlace
from actorproc.sinks.tables.committer import TableCommitter
from actorproc.sinks.tables.protocol import TableHome
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.connectors.delta.chain import SCHEMA

LAYOUT = ProcessorLayout("Copy")
HOUR = 20.0
"""Seconds."""
COMMAND = (
    "import sys, actorproc.retention.boundary as boundary\n"
    f"boundary.RETENTION = {HOUR}  # before others import it\n"
    "from tests.connectors.delta.killed_processes import main\n"
    "main(sys.argv[1])"
)
"""A program: reads a line for each process to start, and prints its id."""
_RANDOM = Random()


async def commit_for_ever(url: str, *, once: bool = False) -> None:
    """Make transactions of the table, each time that there is something new."""
    async with open_store(url, Settings.load()) as store:
        table = DeltaTable("delta", {}, SinkPlace("table", LAYOUT.processor, SYSTEM))
        table.options = table.options.model_copy(update={"history": 2 * HOUR})
        home = TableHome(store, LAYOUT, await dataset_identity(store, LAYOUT) or "")
        committer = TableCommitter("table", table, home, schema=SCHEMA, host="h", log=get_logger(__name__))
        while _is_wanted():
            try:
                await committer.commit()
                if once:
                    return
            except (SinkMoved, StoreUnavailable) as error:
                print(f"committer: {error!r}", file=sys.stderr)
            await anyio.sleep(_RANDOM.uniform(0, 0.1))


async def commit_once(url: str) -> None:
    """Make the last transactions."""
    await commit_for_ever(url, once=True)


async def operate(url: str) -> None:
    """Compact and trim."""
    while _is_wanted():
        for work in (_compact, _trim):
            try:
                await work(url)
            except ActorprocError as error:
                print(f"operator: {error!r}", file=sys.stderr)
        await anyio.sleep(_RANDOM.uniform(0.5, 2))


async def _compact(url: str) -> None:
    await compact(container=url, name=LAYOUT.processor, older_than=0, target_size=2_000)


async def _trim(url: str) -> None:
    async with open_store(url, Settings.load()) as store:
        await trim(RetainedOutput(store, LAYOUT), Settings.load())


_ROLES: dict[str, Callable[[str], Awaitable[None]]] = {
    "committer": commit_for_ever,
    "operator": operate,
    "last": commit_once,
}
_PARENT = os.getpid()


def _is_wanted() -> bool:
    return os.getppid() == _PARENT


def main(url: str) -> None:
    """See `COMMAND`."""
    assert log._SURE == HOUR / 2
    sink._CLEAN_EVERY = 1.0
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            code = 1
            try:
                anyio.run(_ROLES[line.strip()], url)
                code = 0
            except BaseException:  # noqa: BLE001  # told by the log
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)
        if line.strip() == "last":
            _, status = os.waitpid(pid, 0)
            print(status, flush=True)

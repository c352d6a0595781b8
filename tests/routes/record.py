"""The route of a record: files and classes of the package that run between its read and its commit.

A small real job: a built-in log in a folder, one row per record, an embedded `Processor`. A first record is committed
before the count begins, so that the start of the host and of the partition does not count. Then more records are sent,
and the count ends with their commit. It has every Python function that runs on behalf of `ENTRIES`, in the event loop
or in a thread. So supervisor, group and producer do not count. Neither does C, such as the constructors of structs.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from types import FrameType, coroutine
from typing import Any
from unittest.mock import patch

import anyio

from actorproc import PartitionContext, Processor, Producer, Record, RecordHandler
from actorproc.partition.actor import PartitionActor
from actorproc.partition.committer import Committer
from actorproc.partition.read_ahead import ReadAhead
from actorproc.runtime import thread_pool
from tests.routes.rooms import ROOT

ENTRIES: tuple[tuple[type, str], ...] = ((ReadAhead, "run"), (PartitionActor, "_work"))
"""The task that reads, and the loop that processes and commits."""

RECORDS = 100
PATIENCE = 60.0


class Amounts(RecordHandler):
    """One row per record."""

    output_schema = "account string, amount double"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        payment = record.json()
        return {"account": payment["account"], "amount": payment["amount"]}


@dataclass
class Route:
    """Files and classes in order of first entry, and the rows that the job has committed."""

    files: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    rows: int = 0
    counting: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def committed(self, rows: int) -> None:
        """Wait until so many rows are committed."""
        while self.rows < rows:
            self.changed = anyio.Event()
            await self.changed.wait()

    def note_commit(self, rows: int) -> None:
        self.rows = rows
        if rows >= RECORDS:
            self.counting = False
        self.changed.set()


def record_route() -> Route:
    """Run the job, and return its route."""
    with tempfile.TemporaryDirectory(prefix="actorproc-route-") as folder:
        return anyio.run(_run, Path(folder))


async def _run(folder: Path) -> Route:
    log, route = str(folder / "log"), Route()
    processor = Processor(Amounts, source=log, container=str(folder / "state"), host="a", commit_interval="50ms")
    # Around everything: only threads that start later are traced, and an idle thread may serve anybody.
    with _entered(route, lambda: processor.statistics().counts.rows), anyio.fail_after(PATIENCE):
        async with Producer(log, partitions=1, linger=0) as producer:
            await producer.send(_payment(0))
            await producer.flush()
            async with processor, anyio.create_task_group() as tasks:
                await route.committed(1)
                route.counting = True
                for number in range(1, RECORDS):
                    tasks.start_soon(producer.send, _payment(number))
                await route.committed(RECORDS)
    return route


def _payment(number: int) -> dict[str, Any]:
    return {"account": f"A{number % 7}", "amount": number}


@contextmanager
def _entered(route: Route, rows: Callable[[], int]) -> Iterator[None]:
    """Note in `route`, while it counts, which functions of the package run on behalf of an entry."""
    counted = ContextVar("counted", default=False)
    seen: set[object] = set()

    def marked(entry: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        @wraps(entry)
        async def run(*args: Any) -> Any:
            return await _driven(entry(*args), counted)

        return run

    commit = Committer.commit

    async def then_look(committer: Committer, *args: Any) -> None:
        await commit(committer, *args)
        token = counted.set(False)
        route.note_commit(rows())
        counted.reset(token)

    begin = thread_pool._Pool.begin

    def in_thread(pool: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return begin(pool, partial(_counting, counted, work) if counted.get() else work, args)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not route.counting or not counted.get():
            return
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("actorproc.") or (frame.f_code, module) in seen:
            return
        seen.add((frame.f_code, module))
        if (file := _file(frame)) not in route.files:
            route.files.append(file)
        name = _class(frame)
        if name is not None and (known := f"{module}.{name}") not in route.classes:
            route.classes.append(known)

    patches = [patch.object(owner, name, marked(getattr(owner, name))) for owner, name in ENTRIES]
    patches.append(patch.object(Committer, "commit", then_look))
    patches.append(patch.object(thread_pool._Pool, "begin", in_thread))
    for each in patches:
        each.start()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        for each in patches:
            each.stop()


@coroutine
def _driven(entry: Coroutine[Any, Any, Any], counted: ContextVar[bool]) -> Generator[Any, Any, Any]:
    """Await `entry`. The variable is set while it runs, not while the code around it resumes it."""
    resume: Callable[[Any], Any] = entry.send
    value: Any = None
    while True:
        token = counted.set(True)
        try:
            waits_for = resume(value)
        except StopIteration as end:
            return end.value
        finally:
            counted.reset(token)
        try:
            resume, value = entry.send, (yield waits_for)
        except BaseException as error:  # noqa: BLE001  # such as a cancellation, which is the entry's
            resume, value = entry.throw, error


def _counting(counted: ContextVar[bool], work: Callable[..., Any], *args: Any) -> Any:
    """Run `work` in a thread that has no context of its own."""
    token = counted.set(True)
    try:
        return work(*args)
    finally:
        counted.reset(token)


def _file(frame: FrameType) -> str:
    """The file of the function, as a path in the repository. Methods that `dataclass` writes have none of their own."""
    path = Path(frame.f_globals["__file__"])
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _class(frame: FrameType) -> str | None:
    """The class that the method belongs to."""
    code = frame.f_code
    if code.co_filename.startswith("<"):  # written by `dataclass`
        return type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else None
    outer, _, name = code.co_qualname.partition(".<locals>")[0].rpartition(".")
    return outer or None if name else None

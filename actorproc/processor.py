"""`Processor`: puts source, store, group, supervisor and handler together; what applications embed."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.abc

from actorproc.config.settings import Settings
from actorproc.errors import (
    HandlerDefinitionError,
    HandlerError,
    SchemaError,
    SourceError,
    StoreError,
    UsageError,
)
from actorproc.group.group import Group
from actorproc.group.nudge import Nudges, UdpNudges
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler, is_ready_made
from actorproc.handler.options import load_options
from actorproc.host.run_until_end import Ending
from actorproc.host.supervisor import Supervisor, SupervisorStatistics
from actorproc.output.schema import agree_on_schema
from actorproc.output.source_identity import agree_on_source
from actorproc.partition.actor import HostContext
from actorproc.partition.dead_letter_summary import DeadLetterSummary
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.rows.schema import output_schema, parse_schema
from actorproc.runtime.budget import BufferTotal, ByteBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger, warn_while_slow
from actorproc.runtime.signals import Signals
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.user_code import INTERRUPTIONS, user_code
from actorproc.runtime.watchdog import loop_watchdog
from actorproc.sources import LogSource, OutputSource, guard_source, open_source, source_kind
from actorproc.sources.protocol import Source, Start, parse_start
from actorproc.storage.locations import log_in_the_way, wrong_container
from actorproc.storage.names import ProcessorLayout, checked_name
from actorproc.storage.probe import ensure_safe
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME, open_store, overlap

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one processor on one host."""

    processor: str
    host: str
    running: bool
    supervisor: SupervisorStatistics | None
    """As it ended, if it is not running; None: it never ran."""
    store_requests: dict[str, int]
    """How often each verb was sent to the container's store."""
    read_ahead_bytes: int


_default_hosts = count(1)


def default_host() -> str:
    """This machine's name and the process id; a number, too, for each but the first that this process asks for.

    Two processes on one machine, and two processors in one process, are two hosts.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._") or "host"
    number = next(_default_hosts)
    return f"{name}-{os.getpid()}" if number == 1 else f"{name}-{os.getpid()}-{number}"


def _check_arguments(
    unsure: Mapping[str, object], *, name: object, host: object, container: object, settings: object
) -> None:
    """Types of what is given, and names: what is `unsure` should be settings, or is one of our own arguments misspelt.

    Raises:
        UsageError: names the argument, the value and what is allowed.
    """
    for argument, value in (("name", name), ("host", host)):
        if not isinstance(value, str | None):
            raise UsageError(f"{argument} = {value!r}: a text, or None for the default")
    if not isinstance(container, str | os.PathLike | Store):
        raise UsageError(
            f"container = {container!r}: the URL of a store as text, such as 's3://bucket/state', a folder, or an opened Store"
        )
    if not isinstance(settings, Settings | None):
        raise UsageError(
            f"settings = {settings!r:.80}: Settings(...), or none, and each as a keyword: commit_interval='1s'"
        )
    own = inspect.signature(Processor).parameters.keys() - {"keywords", "clock", "nudges"}  # these are for tests
    for given, value in unsure.items():
        near = get_close_matches(given, [*own, *Settings.model_fields], n=1)
        if own.intersection(near):
            raise UsageError(f"{given} = {value!r}: Processor has no such argument; did you mean {near[0]}?")


class Processor:
    """One host of a processor: shares the partitions of a source with the other hosts, and runs a handler on its own.

    Args:
        handler: the delegate; one instance is made for each partition.
        source: URL (or folder) of a built-in log, URL of another processor's output, or a `Source`.
        container: URL (or folder) of the store under which the processor keeps everything it owns, or an opened `Store`.
        name: of the processor, the same on all hosts; default: the handler's name.
        host: name of this host, unique; default: `default_host()`. A second one of the same name replaces the first.
        start: where to begin without a checkpoint: 'earliest', 'latest', or a time with its zone.
        options: of the handler.
        config: a TOML file of settings and options; default: `actorproc.toml`, if it is here.
        settings: all of them, instead of reading file and environment; likewise `options` then.
        keywords: settings by name.

    Raises:
        UsageError: something is wrong with these; nothing was touched yet.
    """

    def __init__(
        self,
        handler: type[PartitionHandler],
        *,
        source: str | os.PathLike[str] | Source,
        container: str | os.PathLike[str] | Store,
        name: str | None = None,
        host: str | None = None,
        start: Start | str = "earliest",
        options: Mapping[str, object] | None = None,
        config: str | Path | None = None,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
        nudges: Nudges | None = None,
        **keywords: Any,
    ) -> None:
        self.handler = checked_handler(handler)
        _check_arguments(keywords, name=name, host=host, container=container, settings=settings)
        self.settings = settings if settings is not None and not keywords else Settings.load(config, **keywords)
        if settings is not None and (also := [*keywords, *(["config"] if config else [])]):
            raise UsageError(f"give settings or {', '.join(also)}, not both")
        if not self.settings.auto_commit and is_ready_made(self.handler):
            raise UsageError(
                f"auto_commit = false cannot go with {self.handler.__name__}: with it only the handler commits, by ctx.commit() in its "
                "process, and this one's is ready-made and never does. Leave it on, or write a PartitionHandler"
            )
        self.options = load_options(self.handler, options, config, alone=settings is not None)
        with user_code(f"{self.handler.__name__}.schema_for", HandlerDefinitionError):
            declared = self.handler.schema_for(self.options)
        try:
            self.schema = parse_schema(declared)
        except SchemaError as error:
            raise SchemaError(f"{self.handler.__name__}: {error}") from None
        self.name = self.handler.__name__ if name is None else name
        self.layout = ProcessorLayout(self.name)
        self.host = checked_name("host name", default_host() if host is None else host)
        self.start = parse_start(start)
        self.clock = clock
        self._log = log.bind(processor=self.name, host=self.host)
        self._source = guard_source(open_source(source, settings=self.settings, clock=clock), log=self._log)
        self._store = container if isinstance(container, Store) else open_store(container, self.settings, clock=clock)
        self._owns_store = not isinstance(container, Store)
        if str(self._source) == OutputSource(self._store, self.name, settings=self.settings, clock=clock).url:
            raise UsageError(f"{self.name} would read its own output, for ever: give it another name or container")
        if isinstance(self._source, (LogSource, OutputSource)):
            self._refuse_overlap(self._source)
        self._nudges = nudges
        self._budget = ByteBudget(self.settings.read_ahead_bytes)
        self._supervisor: Supervisor | None = None
        self._last: SupervisorStatistics | None = None
        self._background: AbstractAsyncContextManager[None] | None = None
        self._stop_asked = False
        self._in_use = False

    def _refuse_overlap(self, source: LogSource | OutputSource) -> None:
        """Neither of what we own and what we read may lie in the other: some names are the same in both."""
        if self._store.url == source.url != "memory://":  # those without a name are apart
            raise UsageError(
                f"source and container are the same place, {source.url}: the container must be another one than the log"
            )
        own, read = f"{self._store.url.rstrip('/')}/{self.name}", source.url.removeprefix(OUTPUT_SCHEME)
        if overlap(own, read):
            raise UsageError(
                f"{self.name} would keep what it owns at {own}, and the source is at {read}: neither may be, or lie in, the "
                "other. Give another container"
            )

    async def __aenter__(self) -> Self:
        """Run in the background until the block ends; then drain and leave. Never touches signals."""
        background = self._in_background()
        await background.__aenter__()
        self._background = background
        return self

    @contextmanager
    def _cancellation_told(self) -> Iterator[None]:
        """Around all that a cancellation of ours, by a signal or a failure, does not leave."""
        try:
            yield
        except asyncio.CancelledError:
            self._log.warning("processor.cancelled", why=_CANCELLED)
            raise

    @asynccontextmanager
    async def _in_background(self) -> AsyncIterator[None]:
        with self._cancellation_told():
            async with self._host_in_background():
                yield

    @asynccontextmanager
    async def _host_in_background(self) -> AsyncIterator[None]:
        async with self._assembled() as supervisor, anyio.create_task_group() as tasks:
            ended = anyio.Event()
            if self._stop_asked:
                supervisor.stop()
            tasks.start_soon(self._run_in_background, supervisor, ended)
            try:
                yield
            except INTERRUPTIONS:
                raise
            except BaseException:  # it would cancel what is still being drained
                self.stop()
                await ended.wait()
                raise
            self.stop()
            await ended.wait()

    async def _run_in_background(self, supervisor: Supervisor, ended: anyio.Event) -> None:
        try:
            await supervisor.run()
        finally:
            ended.set()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool | None:
        background, self._background = self._background, None
        if background is None:
            return None
        try:
            return await background.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            cause = first_cause(group, error) if isinstance(group, ExceptionGroup) else error
            if cause is None:
                raise
            if cause is error:
                return False  # the block's own goes on as it is
            raise cause from None

    async def run(
        self,
        *,
        until_end: bool = False,
        signals: bool = False,
        draining: Callable[[], None] = lambda: None,
        aborting: Callable[[], None] = lambda: None,
    ) -> None:
        """Run until stopped.

        Args:
            until_end: return when every partition has reached the end it had at the start, and all of it is committed.
            signals: SIGTERM and SIGINT drain and stop; a second one aborts. Only in the main thread.
            draining, aborting: called at the first and the second signal, from the signal handler: an event loop that hangs does
                not hear of it.

        Raises:
            EndNotReached: `until_end`, and it was stopped before; or all that this host has left to do has failed
                `HOPELESS` times in a row without getting on, or by a mistake in the handler itself (HandlerMisuse).
            Aborted: a second signal came.
            Fenced: another host of the same name has taken over.
            StoreError: the store cannot be used.
            UsageError: what the handler emits does not go with what is stored; or it runs already.
        """
        signalled = Signals(self.clock, aborting, draining=draining, log=self._log) if signals else None
        ending = Ending(self._source, self._store, self.layout, self._log) if until_end else None
        supervisor: Supervisor | None = None
        try:
            with self._cancellation_told(), signalled.handled() if signalled else nullcontext():
                async with AsyncExitStack() as stack:
                    supervisor = await stack.enter_async_context(self._assembled(ending))
                    tasks = await stack.enter_async_context(anyio.create_task_group())
                    if signalled:
                        signalled.started()
                        tasks.start_soon(self._stop_after, signalled)
                    if ending:
                        tasks.start_soon(ending.watch, supervisor)
                    if self._stop_asked:
                        supervisor.stop()
                    await supervisor.run()
                    tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise first_cause(group) from None
        if ending:
            ending.check(supervisor)

    async def _stop_after(self, signalled: Signals) -> None:
        await signalled.wait()
        self.stop()

    def stop(self) -> None:
        """Ask it to drain, commit and hand the leases over; `run` returns when it has. Before it runs: as soon as it does."""
        self._stop_asked = True
        if self._supervisor is not None:
            self._supervisor.stop()

    def statistics(self) -> Statistics:
        """What this host is doing now."""
        supervisor = self._supervisor
        return Statistics(
            processor=self.name,
            host=self.host,
            running=supervisor is not None,
            supervisor=supervisor.statistics() if supervisor else self._last,
            store_requests=dict(self._store.requests),
            read_ahead_bytes=self._budget.used,
        )

    @contextmanager
    def _not_twice(self) -> Iterator[None]:
        if self._in_use:
            raise UsageError("this Processor runs already; make another one for a second host in this process")
        self._in_use = True
        try:
            yield
        finally:
            self._in_use = self._stop_asked = False

    @asynccontextmanager
    async def _shared(self) -> AsyncIterator[Any]:
        """What the handler's `shared` gives. What it raises itself, at its end too, is a HandlerError; other errors pass."""
        name = f"{self.handler.__name__}.shared"
        with user_code(name, HandlerError, application_task=True):
            shared = self.handler.shared(self.options)
            value = await shared.__aenter__()
        try:
            yield value
        except BaseException as error:
            try:
                with user_code(name, HandlerError, application_task=True):
                    if await shared.__aexit__(type(error), error, error.__traceback__):
                        return
            except HandlerError as failure:
                if failure.__cause__ is None or _cause(failure.__cause__) is not _cause(error):
                    raise
            raise
        with user_code(name, HandlerError, application_task=True):
            await shared.__aexit__(None, None, None)

    @asynccontextmanager
    async def _assembled(self, ending: Ending | None = None) -> AsyncIterator[Supervisor]:
        """Everything connected and checked, and a supervisor that is ready to run."""
        settings, clock = self.settings, self.clock
        async with AsyncExitStack() as stack:
            stack.enter_context(self._not_twice())
            if self._owns_store:
                await stack.enter_async_context(self._store)
            wrong = await wrong_container(self._store) or await log_in_the_way(self._store, self.name)
            if wrong is not None:
                raise UsageError(wrong)
            with self._slowness_told("open() of the source"):
                await self._source.open()
            stack.push_async_callback(self._close_source)
            await self._check_start()
            await ensure_safe(self._store, self.layout.probe)
            source = self._source
            await agree_on_source(self._store, self.layout, source.identity, str(source), source_kind(source))
            if added := await agree_on_schema(self._store, self.layout, self.schema):
                self._log.warning(
                    "processor.columns_added", columns=added, why="for good: every later handler must declare them"
                )
            with self._slowness_told("shared() of the handler"):
                shared = await stack.enter_async_context(self._shared())
            with self._slowness_told("register() of the source"):
                await self._source.register(self.name, self._store.url)
            nudges = self._nudges or UdpNudges(self._store.url, settings, self.name, clock=clock, log=self._log)
            if clock is SYSTEM:
                await stack.enter_async_context(loop_watchdog(settings.loop_block_warning, self._log))
            common = HostContext(
                processor=self.name, host=self.host, handler=self.handler, schema=output_schema(self.schema),
                source=self._source, store=self._store, layout=self.layout, settings=settings, clock=clock,
                start=self.start, options=self.options, shared=shared, budget=self._budget, held=BufferTotal(settings.uncommitted_bytes), news=DeadLetterSummary(),
                threads=HandlerThreads(settings.handler_threads, clock, settings.max_process_time),
            )  # fmt: skip
            group = Group(self._store.lane(), self.layout, self.host, settings, clock=clock, nudges=nudges)
            self._supervisor = Supervisor(group, common, await ending.find() if ending else None)
            self._log.info("processor.started", source=str(self._source), container=self._store.url)
            try:
                async with nudges.listening(self._supervisor.nudge):
                    yield self._supervisor
            finally:
                self._supervisor.close()
                self._last, self._supervisor = self._supervisor.statistics(), None
                self._log.info("processor.stopped", **asdict(self._last.done))

    async def _check_start(self) -> None:
        """A source that has no such start refuses it here, once, and not at each partition again and again."""
        if self.start == "earliest":
            return
        with self._slowness_told("start() of the source"), suppress(SourceError, StoreError):  # which may be over soon
            for partition in list(await self._source.partitions())[:1]:
                await self._source.start(partition, self.start)

    def _slowness_told(self, waiting_for: str) -> AbstractContextManager[None]:
        return warn_while_slow(self._log, waiting_for)

    async def _close_source(self) -> None:
        with self._slowness_told("close() of the source"):
            await self._source.close()


_CANCELLED = (
    "the task that ran it was cancelled, so nothing was drained: what is not committed is processed again, elsewhere once the leases "
    "have expired. stop() drains, and so does run(signals=True) on SIGTERM and Ctrl-C"
)


def _cause(error: BaseException) -> BaseException:
    """Behind groups: a task group in a handler's `shared` wraps what passes it."""
    return first_cause(error) if isinstance(error, Exception) else error

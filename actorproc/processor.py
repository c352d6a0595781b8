"""`Processor`: one host of a processor, which applications embed. Puts source, store, group and supervisor together."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import anyio
import anyio.abc
import pyarrow as pa

from actorproc.codecs import open_decoder, open_key_decoder
from actorproc.config.settings import Settings
from actorproc.errors import Aborted, ActorprocError, UsageError
from actorproc.group.format_versions import FORMAT_VERSIONS, FormatVersions
from actorproc.group.group import Group
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler
from actorproc.handler.decoder import Decoder
from actorproc.handler.hooks import Hooks
from actorproc.handler.options import load_options
from actorproc.handler.state_kinds import state_types, wakes
from actorproc.host.arguments import (
    check_keywords,
    check_places,
    check_types,
    checked_settings,
    declared_columns,
    default_host,
)
from actorproc.host.failing import store_outage
from actorproc.host.first_contact import FirstContact, StoppedBeforeStart
from actorproc.host.run_until_end import RunUntilEnd
from actorproc.host.startup import (
    cancellation_logged,
    check_consumers,
    check_container,
    check_first_start,
    opened,
    prepare_container,
    shared_value,
)
from actorproc.host.statistics import Statistics
from actorproc.host.supervisor import Supervisor
from actorproc.output.source_identity import SourceRecord
from actorproc.partition.dead_letter_summary import DeadLetterSummary
from actorproc.partition.handler_threads import HandlerThreads
from actorproc.partition.hook_queue import HookQueue
from actorproc.partition.host_context import HostContext
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.runtime.budget import BufferTotal, ByteBudget
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger, warn_while_slow
from actorproc.runtime.nudge import Nudges, UdpNudges
from actorproc.runtime.signals import Signals
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.user_code import INTERRUPTIONS
from actorproc.runtime.watchdog import Blockage, loop_watchdog
from actorproc.sinks.host_sinks import HostSinks, SinkConfig
from actorproc.sinks.unconfigured import warn_of_others
from actorproc.sources import guard_source, open_source
from actorproc.sources.protocol import Source, Start, parse_start
from actorproc.storage.names import ProcessorLayout, checked_name
from actorproc.storage.store import Store
from actorproc.stores import open_store

__all__ = ["Processor", "Statistics", "default_host"]

logger = get_logger(__name__)


class Processor:
    """One host of a processor: shares the partitions of a source with the other hosts, and runs a handler on its own.

    Args:
        handler: class of the handler. Each partition gets an instance.
        source: URL (or folder) of a built-in log, URL of another processor's output, or a `Source`.
        container: URL (or folder) of the store in which the processor keeps everything it owns, or an opened `Store`.
        name: of the processor, the same on all hosts; default: the handler's name.
        host: name of this host, unique; default: `default_host()`. A second one of the same name replaces the first.
        start: where to begin without a checkpoint: 'earliest', 'latest', or a time with its zone.
        start_from: another consumer of the source, whose committed positions come before `start`; for topics of Kafka
            `kafka-group:NAME`, or `eventhubs-checkpoints:URL` for Azure's event processors; for a change feed
            `cosmos-leases:URL`; for Kinesis `kcl:APPLICATION`.
        hooks: called for what happens to the partitions of this host; see `Hooks`.
        options: of the handler.
        config: a TOML file of settings and options; default: `actorproc.toml`, if it is here.
        decoder: of the values, instead of the one that the setting `decode` names.
        sinks: systems that get the committed rows, by name: a URL, options with the URL as `url`, or a `Sink`. Default:
            the setting `sinks`.
        settings: all of them, instead of reading file and environment; likewise `options` then.
        keywords: settings by name.

    Raises:
        UsageError: an argument is wrong. Nothing was touched yet.
    """

    format_versions: ClassVar[FormatVersions] = FORMAT_VERSIONS
    """The format versions that this version of actorproc understands. Hosts of another version differ in them."""

    def __init__(
        self,
        handler: type[PartitionHandler],
        *,
        source: str | os.PathLike[str] | Source,
        container: str | os.PathLike[str] | Store,
        name: str | None = None,
        host: str | None = None,
        start: Start | str = "earliest",
        start_from: str | None = None,
        hooks: Hooks | None = None,
        options: Mapping[str, object] | None = None,
        config: str | Path | None = None,
        decoder: Decoder | None = None,
        sinks: Mapping[str, SinkConfig] | None = None,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
        nudges: Nudges | None = None,
        **keywords: Any,
    ) -> None:
        self.handler = checked_handler(handler)
        check_keywords(keywords, Processor)
        check_types(name, host, start_from, container, settings, hooks, decoder)
        self.settings = checked_settings(self.handler, settings, config, keywords)
        self.options = load_options(self.handler, options, config, alone=settings is not None)
        self.schema, self._subject = declared_columns(self.handler, self.options)
        self.decoder = open_decoder(self.settings, clock=clock) if decoder is None else decoder
        self.key_decoder = open_key_decoder(self.settings, clock=clock)
        self.name = self.handler.__name__ if name is None else name
        self.layout = ProcessorLayout(self.name)
        self.host = checked_name("host name", default_host() if host is None else host)
        self.start = parse_start(start)
        self.start_from = start_from
        self.hooks = hooks
        self.clock = clock
        self._logger = logger.bind(processor=self.name, host=self.host)
        self._source = guard_source(open_source(source, settings=self.settings, clock=clock), log=self._logger)
        self._store = container if isinstance(container, Store) else open_store(container, self.settings, clock=clock)
        self._owns_store = not isinstance(container, Store)
        check_places(self.name, self._source, self._store)
        targets = self.settings.sinks if sinks is None else sinks
        self._sinks = HostSinks(targets, self.name, clock, self._logger) if targets else None
        if self._sinks is not None and wakes(self.handler):
            self._sinks.refuse_replace()
        self._nudges = nudges
        self._supervisor: Supervisor | None = None
        self._contact: FirstContact | None = None  # while it runs
        self._last_statistics = Statistics(self.name, self.host)
        self._background: AbstractAsyncContextManager[None] | None = None
        self._stop_requested = False

    # Running

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
            draining, aborting: called at the first and the second signal, by the signal handler itself, so that they
                also run while the event loop hangs.

        Raises:
            EndNotReached: `until_end`, and it was stopped before; or the partitions that are left have failed again and
                again with nothing committed in between, or by a mistake in the handler itself (HandlerMisuse).
            Aborted: a second signal came.
            Fenced: another host of the same name has taken over.
            VersionRefused: the group runs a version of actorproc that is incompatible with this one.
            StoreError: the store cannot be used.
            UsageError: the handler's rows do not go with what is stored; or it runs already.

        While store or source are away, the start is tried again and again, as `statistics().error` says.
        """
        signalled = Signals(self.clock, aborting, draining=draining, log=self._logger) if signals else None
        end = None
        if until_end:
            end = RunUntilEnd(
                self._source, self._store, self.layout, self.host, self._logger,
                needs_owner=wakes(self.handler) or (self._sinks is not None and self._sinks.need_owner),
            )  # fmt: skip
        try:
            with cancellation_logged(self._logger), signalled.handled() if signalled else nullcontext():
                async with self._started(end) as supervisor:
                    async with anyio.create_task_group() as tasks:
                        if signalled:
                            signalled.started()
                            tasks.start_soon(self._stop_after, signalled)
                        if end:
                            tasks.start_soon(end.watch, supervisor)
                        await supervisor.run()
                        tasks.cancel_scope.cancel()
                    supervisor.check_left()
        except StoppedBeforeStart:
            pass
        except ExceptionGroup as group:
            raise first_cause(group) from None
        if end:
            end.check(signalled.first if signalled else None)

    async def _stop_after(self, signalled: Signals) -> None:
        await signalled.wait()
        self.stop()

    async def __aenter__(self) -> Self:
        """Run in the background until the block ends; then drain and leave. Never touches signals.

        The block begins once store, source and `shared` have answered.

        Raises:
            Aborted: `stop` was called before that.
        """
        background = self._in_background()
        try:
            await background.__aenter__()
        except StoppedBeforeStart as error:
            raise Aborted(str(error)) from None
        self._background = background
        return self

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

    @asynccontextmanager
    async def _in_background(self) -> AsyncIterator[None]:
        with cancellation_logged(self._logger):
            async with self._started() as supervisor:
                async with anyio.create_task_group() as tasks:
                    ended = anyio.Event()
                    tasks.start_soon(_run_to_end, supervisor, ended)
                    try:
                        yield
                    except INTERRUPTIONS:
                        raise
                    except BaseException:  # it would cancel the drain
                        self.stop()
                        await ended.wait()
                        raise
                    self.stop()
                    await ended.wait()
                supervisor.check_left()

    def stop(self) -> None:
        """Drain, commit and hand the leases over; `run` then returns. Called before `run`, it takes effect there.

        During the start it cancels what the host waits for.
        """
        self._stop_requested = True
        if self._supervisor is not None:
            self._supervisor.stop()
        elif self._contact is not None:
            self._contact.stop()

    def statistics(self) -> Statistics:
        """A snapshot of this host, without a request. After it has stopped: as it was at the end."""
        if self._supervisor is not None:
            return self._supervisor.statistics()
        if self._contact is not None:
            outage = store_outage(self._store, self.clock)
            return Statistics(self.name, self.host, error=self._contact.error or (outage and outage.text))
        return self._last_statistics

    @property
    def source(self) -> str:
        """The source's URL, or the name of its class."""
        return str(self._source)

    @property
    def container(self) -> str:
        """The container's URL."""
        return self._store.url

    # Starting

    @asynccontextmanager
    async def _started(self, end: RunUntilEnd | None = None) -> AsyncIterator[Supervisor]:
        """Everything opened and checked, and a supervisor that is ready to run."""
        settings, clock, source, store = self.settings, self.clock, self._source, self._store
        async with AsyncExitStack() as stack:
            contact = stack.enter_context(self._first_contact(until_end=end is not None))
            if self._owns_store:
                await contact(lambda: stack.enter_async_context(store))
            await contact(lambda: check_container(store, self.name))
            await contact(lambda: stack.enter_async_context(opened(source, self.start, self._logger)))
            stack.push_async_callback(self.decoder.close)
            if self.key_decoder is not None:
                stack.push_async_callback(self.key_decoder.close)
            if self._subject is not None:
                self.schema = await contact(partial(self._schema_of, self._subject))
            await contact(lambda: check_first_start(store, self.layout, source, self.start, self.start_from))
            await contact(lambda: check_consumers(store, self.layout, source, self.start_from, settings.mirror_offsets))
            recorded = await contact(
                lambda: prepare_container(
                    store, self.layout, source, self.start, self.schema, state_types(self.handler), self._logger
                )
            )
            with contact.stoppable("shared() of the handler"):
                shared = await stack.enter_async_context(shared_value(self.handler, self.options, self._logger))
            hooks = HookQueue(self.hooks, settings.hook_queue, clock, self._logger, processor=self.name, host=self.host)
            nudges = self._nudges or UdpNudges(
                store.backend.route, settings.nudge_host, self.name, on_news=self._told, clock=clock, log=self._logger
            )
            if (sinks := self._sinks) is not None:
                stack.push_async_callback(sinks.close)
                columns = output_schema(self.schema)
                await contact(lambda: sinks.open(store, self.layout, columns, self.host, hooks.add, nudges.follow))
            names = sinks.configured if sinks is not None else ()
            await contact(lambda: warn_of_others(store, self.layout, names, self._logger))
            with warn_while_slow(self._logger, "register() of the source"):
                await contact(lambda: source.register(self.name, store.url))
            if clock is SYSTEM:
                stack.enter_context(
                    loop_watchdog(
                        settings.loop_block_warning, self._logger, self._say_blocked, settings.lease_renew_interval / 4
                    )
                )
            group = Group(
                store.lane(),
                self.layout,
                self.host,
                settings,
                clock=clock,
                nudges=nudges,
                format_versions=self.format_versions,
            )
            if end is not None:
                await contact(end.ends.take)
            supervisor = Supervisor(group, self._context(recorded, shared, nudges, hooks, until_end=end is not None))
            self._logger.info("processor.started", source=str(source), container=store.url)
            stack.callback(self._supervisor_ended, supervisor)
            self._supervisor = supervisor
            await stack.enter_async_context(nudges.listening(supervisor.nudge))
            if self._stop_requested:
                supervisor.stop()
            yield supervisor

    def _told(self, partition: str, number: int) -> None:
        """A host has made a commit."""
        if self._sinks is not None:
            self._sinks.tables.told(partition)

    async def _schema_of(self, subject: str) -> pa.Schema:
        """The columns that a subject of the schema registry declares now."""
        return parse_schema(await self.decoder.output_schema(subject))

    def _context(
        self, recorded: SourceRecord, shared: Any, nudges: Nudges, hooks: HookQueue, *, until_end: bool
    ) -> HostContext:
        settings, clock = self.settings, self.clock
        return HostContext(
            processor=self.name, processor_id=recorded.put_id, host=self.host, handler=self.handler,
            schema=output_schema(self.schema), source=self._source, store=self._store, layout=self.layout,
            settings=settings, clock=clock, start=self.start, options=self.options, shared=shared,
            budget=ByteBudget(settings.read_ahead_bytes), held=BufferTotal(settings.uncommitted_bytes),
            dead_letter_summary=DeadLetterSummary(),
            threads=HandlerThreads(settings.handler_threads, clock, settings.max_process_time),
            decoder=self.decoder, key_decoder=self.key_decoder,
            hooks=hooks,
            start_from=self.start_from,
            latest_partitions=None if recorded.partitions is None else frozenset(recorded.partitions),
            until_end=until_end, sinks=self._sinks, nudges=nudges,
        )  # fmt: skip

    def _say_blocked(self, found: Blockage) -> None:
        """Tell other hosts and people which line blocks the event loop: it cannot do so itself. In a thread."""
        supervisor = self._supervisor
        if supervisor is None or not self._owns_store:
            return

        async def say() -> None:
            async with open_store(self._store.url, self.settings) as store:
                with anyio.move_on_after(self.settings.lease_renew_interval):
                    await supervisor.say_blocked(store, found)

        try:
            anyio.run(say)
        except ActorprocError as error:
            self._logger.debug("loop.blocked_untold", error=str(error))

    def _supervisor_ended(self, supervisor: Supervisor) -> None:
        supervisor.close()
        self._last_statistics, self._supervisor = supervisor.statistics(running=False), None
        did = self._last_statistics.counts
        self._logger.info(
            "processor.stopped", records=did.records, rows=did.rows, dead_letters=did.dead_letters, skipped=did.skipped
        )

    @contextmanager
    def _first_contact(self, *, until_end: bool) -> Iterator[FirstContact]:
        if self._contact is not None:
            raise UsageError("this Processor runs already; make another one for a second host in this process")
        self._contact = FirstContact(
            self.settings, self.clock, self._logger, until_end=until_end, stopped=self._stop_requested
        )
        try:
            yield self._contact
        finally:
            self._contact, self._stop_requested = None, False


async def _run_to_end(supervisor: Supervisor, ended: anyio.Event) -> None:
    try:
        await supervisor.run()
    finally:
        ended.set()

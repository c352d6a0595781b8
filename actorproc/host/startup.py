"""Opens and checks everything that a host needs to join its group: container, source, and the handler's `shared`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import pyarrow as pa

from actorproc.errors import HandlerDefinitionError, HandlerError, SourceError, StoreError, UsageError
from actorproc.handler.base import PartitionHandler
from actorproc.output.schema_document import StateTypes, agree_on_schema
from actorproc.output.source_identity import SourceRecord, agree_on_source, read_source
from actorproc.runtime.logger import warn_while_slow
from actorproc.runtime.tasks import first_cause
from actorproc.runtime.user_code import user_code
from actorproc.sources import source_kind
from actorproc.sources.protocol import Source, Start, list_partitions, with_deadline
from actorproc.storage.listing import documents
from actorproc.storage.locations import log_in_the_way, wrong_container
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.probe import ensure_safe
from actorproc.storage.store import Store

_SHARED_ENDS = "shared() of the handler, after its yield"
_CANCELLED = (
    "the task that ran it was cancelled, so nothing was drained: what is not committed is processed again, elsewhere "
    "once the leases have expired. stop() drains, and so does run(signals=True) on SIGTERM and Ctrl-C"
)


async def check_container(store: Store, name: str) -> None:
    """Raises UsageError: processor `name` cannot live in this container."""
    wrong = await wrong_container(store) or await log_in_the_way(store, name)
    if wrong is not None:
        raise UsageError(wrong)


@asynccontextmanager
async def opened(source: Source, start: Start, log: Any) -> AsyncIterator[None]:
    """Open the source, and close it at the end. An unknown `start` is refused here, once for all partitions.

    Raises:
        UsageError: the source has no such start.
        SourceError: it cannot be opened.
    """
    with warn_while_slow(log, "open() of the source"):
        await source.open()
    try:
        if start != "earliest":
            with warn_while_slow(log, "start() of the source"), suppress(SourceError, StoreError):  # asked again later
                for partition in list(await list_partitions(source))[:1]:
                    await source.start(partition, start)
        yield
    finally:
        with warn_while_slow(log, "close() of the source"):
            await source.close()


async def check_consumers(
    store: Store, layout: ProcessorLayout, source: Source, start_from: str | None, mirror_offsets: str | None
) -> None:
    """Check the names of other consumers of the source: the one to start from, and the group to show progress to.

    Raises:
        UsageError: the source knows no such consumers; or the processor is new, and the consumer to start from has no
            position in any partition, as where its name is mistyped.
        SourceError: the source does not answer.
    """
    if mirror_offsets is not None:
        await source.mirror(mirror_offsets, {})
    if start_from is None or await documents(store, layout.checkpoints):
        return
    for partition in await list_partitions(source):
        if await source.position_of(start_from, partition) is not None:
            return
    raise UsageError(
        f"start_from = {start_from!r}: it has no position in any partition of {source}. Check its name; leave "
        "start_from out to begin at `start`"
    )


async def check_first_start(
    store: Store, layout: ProcessorLayout, source: Source, start: Start, start_from: str | None
) -> None:
    """Before the first start of a processor: check that the stream exists, and that it can be read from `start` on.

    A later start does without: partitions go on at their checkpoints, and a part of the stream may have been deleted.

    Raises:
        UsageError: the source has no such start.
        SourceError: a part of the stream is missing.
    """
    if await read_source(store, layout) is not None:
        return
    await with_deadline(source.check_exists(), "check_exists", store.limits)
    if start != "earliest" or start_from is not None:
        return  # other starts: see `opened`
    with suppress(SourceError, StoreError):  # the partitions ask again
        for partition in list(await with_deadline(list_partitions(source), "partitions", store.limits))[:1]:
            await with_deadline(source.start(partition, start), "start", store.limits)


async def prepare_container(
    store: Store,
    layout: ProcessorLayout,
    source: Source,
    start: Start,
    schema: pa.Schema,
    states: StateTypes,
    log: Any,
) -> SourceRecord:
    """Probe the store, and compare source and schemas with those of earlier runs.

    Raises:
        UsageError: source or schemas do not go with the stored ones.
        StoreError: the store cannot be used, or is not safe.
        SourceError: the source does not list its partitions.
    """
    await ensure_safe(store, layout.probe)
    partitions = list(await list_partitions(source)) if start == "latest" else None
    recorded = await agree_on_source(store, layout, source.identity, str(source), source_kind(source), partitions)
    if added := await agree_on_schema(store, layout, schema, states):
        log.warning("processor.columns_added", columns=added, why="for good: every later handler must declare them")
    return recorded


@asynccontextmanager
async def shared_value(handler: type[PartitionHandler], options: Any, log: Any) -> AsyncIterator[Any]:
    """Enter the handler's `shared`, and leave it at the end. Errors that pass through it stay as they are.

    Raises:
        HandlerDefinitionError: `shared` returns no async context manager.
        HandlerError: `shared` itself failed, at its beginning or its end.
    """
    name = f"{handler.__name__}.shared"
    with warn_while_slow(log, "shared() of the handler"), user_code(name, HandlerError, application_task=True):
        shared = handler.shared(options)
        if not isinstance(shared, AbstractAsyncContextManager):
            raise HandlerDefinitionError(
                f"{name} must return an async context manager, not {type(shared).__name__}: make it an `async def` "
                "that yields, with @asynccontextmanager between @classmethod and it"
            )
        value = await shared.__aenter__()
    try:
        yield value
    except BaseException as error:
        try:
            with warn_while_slow(log, _SHARED_ENDS), user_code(name, HandlerError, application_task=True):
                if await shared.__aexit__(type(error), error, error.__traceback__):
                    return
        except HandlerError as failure:
            if failure.__cause__ is None or _cause(failure.__cause__) is not _cause(error):
                raise
        raise
    with warn_while_slow(log, _SHARED_ENDS), user_code(name, HandlerError, application_task=True):
        await shared.__aexit__(None, None, None)


def _cause(error: BaseException) -> BaseException:
    """The error within exception groups: a task group in a handler's `shared` wraps errors that pass through it."""
    return first_cause(error) if isinstance(error, Exception) else error


@contextmanager
def cancellation_logged(log: Any) -> Iterator[None]:
    """Warn if the task is cancelled from outside: nothing is drained then."""
    try:
        yield
    except asyncio.CancelledError:
        log.warning("processor.cancelled", why=_CANCELLED)
        raise

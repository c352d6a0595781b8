"""Opens the source that a processor reads, for acts on its positions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.output.source_identity import check_source, read_source
from actorproc.sources import Source, guard_source, open_source, source_kind
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


@asynccontextmanager
async def own_source(
    store: Store, layout: ProcessorLayout, settings: Settings, given: Source | str | None = None
) -> AsyncIterator[Source]:
    """The source of a processor, open.

    Args:
        given: the source or its URL. None: the recorded one.

    Raises:
        UsageError: `given` is another stream, or none is given and the recorded one has no URL.
        SourceError: it cannot be opened.
    """
    if given is None:
        recorded = await read_source(store, layout)
        if recorded is None or "://" not in recorded.name:
            which = "has not run yet" if recorded is None else f"reads {recorded.name}, a source of your own"
            raise UsageError(f"{layout.processor} {which}: give its source")
        given = recorded.name
    source = guard_source(open_source(given, settings=settings, clock=store.clock))
    await source.open()
    try:
        await check_source(store, layout, source.identity, str(source), source_kind(source))
        yield source
    finally:
        await source.close()

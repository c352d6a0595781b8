"""The processor that a request names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store


@asynccontextmanager
async def named_processor(
    request: Request, container: str, settings: Settings
) -> AsyncIterator[tuple[Store, ProcessorLayout]]:
    """The container and the layout of the processor. Raises UsageError: it has never run there."""
    layout = ProcessorLayout(request.path_params["name"])
    async with open_store(container, settings) as store:
        if (missing := await missing_processor(store, layout.processor)) is not None:
            raise UsageError(missing)
        yield store, layout

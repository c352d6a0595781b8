"""Warns of sinks that are registered, and that this host does not have: it delivers nothing to them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from actorproc.retention.readers import read_registry
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


async def warn_of_others(store: Store, layout: ProcessorLayout, configured: Collection[str], log: Any) -> None:
    """Log each sink that other hosts have registered. Raises StoreError: the registry could not be read."""
    for name, entry in sorted((await read_registry(store, layout.readers)).sinks.items()):
        if name not in configured:
            remedy = "this host delivers nothing to it: give all hosts the same sinks, or delete it (actorproc sinks)"
            log.warning("sink.not_configured", sink=name, url=entry.url, what_to_do=remedy)

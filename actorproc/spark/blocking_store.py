"""A store for blocking callers. Its event loop runs in a thread of its own, so it also works in notebooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from actorproc.config.settings import Settings
from actorproc.storage.backend import Stored
from actorproc.storage.store import Store
from actorproc.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class BlockingStore(NamedTuple):
    """An open store and the portal to its event loop."""

    store: Store
    portal: BlockingPortal

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run async `work` and return its result."""
        return self.portal.call(lambda: work(*args, **kwargs))

    def get(self, key: str, size: int) -> Future[Stored | None]:
        """Start to fetch an object of `size` bytes; None if there is no such object."""
        return self.portal.start_task_soon(partial(self.store.get, key, size=size))


@contextmanager
def open_blocking(url: str, settings: Settings) -> Iterator[BlockingStore]:
    """Open the store at `url`.

    Raises:
        UsageError, StoreError: as `open_store` and its connecting do.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_store(url, settings)) as store:
        yield BlockingStore(store, portal)

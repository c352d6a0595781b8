"""A store for blocking callers. Its event loop runs in a thread of its own, so it also works in notebooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from actorproc.config.settings import Settings
from actorproc.errors import StoreUnavailable
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.storage.backend import Stored
from actorproc.storage.store import Store
from actorproc.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")

_BACKOFF = Backoff(0.1, 5.0)


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
def open_blocking(url: str, settings: Settings, *, retry: bool = False) -> Iterator[BlockingStore]:
    """Open the store at `url`. `retry`: try for `store_patience` if it is unavailable.

    Raises:
        UsageError, StoreError: as `open_store` and its connecting do.
    """
    with start_blocking_portal() as portal:
        opening = _open_with_retries(url, settings) if retry else open_store(url, settings)
        with portal.wrap_async_context_manager(opening) as store:
            yield BlockingStore(store, portal)


@asynccontextmanager
async def _open_with_retries(url: str, settings: Settings) -> AsyncIterator[Store]:
    give_up = SYSTEM.monotonic() + settings.store_patience
    async with AsyncExitStack() as stack:
        for attempt in count(1):
            try:
                store = await stack.enter_async_context(open_store(url, settings))
                break
            except StoreUnavailable:
                delay = _BACKOFF.delay(attempt, SYSTEM.random)
                if SYSTEM.monotonic() + delay >= give_up:
                    raise
            await SYSTEM.sleep(delay)
        yield store

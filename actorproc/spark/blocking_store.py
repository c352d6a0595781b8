"""A store for callers that are not async: its event loop has a thread of its own, so it works in notebooks, too."""

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
    """An open store and the loop in which it lives."""

    store: Store
    portal: BlockingPortal

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of async `work`."""
        return self.portal.call(lambda: work(*args, **kwargs))

    def get(self, key: str, size: int) -> Future[Stored | None]:
        """The object, later, which had `size` bytes when it was listed; None if there is no such object."""
        return self.portal.start_task_soon(partial(self.store.get, key, size=size))


@contextmanager
def open_blocking(url: str, settings: Settings, *, patient: bool = False) -> Iterator[BlockingStore]:
    """The store at `url`. `patient`: it was there before, so if it is away it is tried for `store_patience`.

    Raises:
        UsageError, StoreError: as `open_store` and its connecting do.
    """
    with start_blocking_portal() as portal:
        unopened = _patiently(url, settings) if patient else _at_once(url, settings)
        with portal.wrap_async_context_manager(unopened) as store:
            yield BlockingStore(store, portal)


@asynccontextmanager
async def _at_once(url: str, settings: Settings) -> AsyncIterator[Store]:
    async with open_store(url, settings) as store:
        yield store


@asynccontextmanager
async def _patiently(url: str, settings: Settings) -> AsyncIterator[Store]:
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

"""A store for callers that are not async: its event loop has a thread of its own, so it works in notebooks, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from actorproc.settings import Settings
from actorproc.store import Store, Stored
from actorproc.stores import open_store

P = ParamSpec("P")
T = TypeVar("T")


class Place(NamedTuple):
    """An open store and the loop in which it lives."""

    store: Store
    portal: BlockingPortal

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of async `work`."""
        return self.portal.call(lambda: work(*args, **kwargs))

    def get(self, key: str) -> Future[Stored | None]:
        """The object, later; None if there is no such object."""
        return self.portal.start_task_soon(self.store.get, key)


@contextmanager
def opened(url: str, settings: Settings) -> Iterator[Place]:
    """The store at `url`.

    Raises:
        UsageError, StoreError: as `open_store` and its connecting do.
    """
    with start_blocking_portal() as portal:
        unopened = portal.call(open_store, url, settings)
        with portal.wrap_async_context_manager(unopened) as store:
            yield Place(store, portal)

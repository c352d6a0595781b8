"""Base of the sources that read files of a store: a log, or the output of another processor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, suppress

from actorproc.config.settings import Settings
from actorproc.errors import StoreRefused, UsageError, located
from actorproc.retention.readers import Reader, register, remove
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.protocol import Chunk, Source
from actorproc.storage.store import Store
from actorproc.stores import given_store

logger = get_logger(__name__)


class StoredSource(Source):
    """Opens the store, and registers the processor as a reader, so that a trim keeps its unread files.

    Args:
        readers: key of the registry of readers.

    Raises:
        UsageError: `given` is not a URL, a folder or a store. The message names `argument` and the `allowed` values.
    """

    def __init__(
        self, argument: str, given: object, allowed: str, *, readers: str, settings: Settings | None, clock: Clock
    ) -> None:
        self._settings = settings or Settings.load()
        self._clock = clock
        self._owns_store = not isinstance(given, Store)
        self._opened = AsyncExitStack()
        self._store = given_store(argument, given, allowed, self._settings, clock)
        self._readers = readers
        self._lowest: Mapping[str, int] = {}  # number of the first file by partition, when the processor registered
        self.url = self._store.url
        self.endpoint = self._store.backend.endpoint
        """See `Backend.endpoint`."""

    async def open(self) -> None:
        """Connect.

        Raises:
            UsageError: there is nothing to read.
        """
        with located(self._store.url):
            async with AsyncExitStack() as opened:
                if self._owns_store:
                    await opened.enter_async_context(self._store)
                self.identity = await self._found()
                self._opened = opened.pop_all()

    @abstractmethod
    async def _found(self) -> str | None:
        """The identity of the log or output. Raises UsageError if it does not exist."""

    async def close(self) -> None:
        await self._opened.aclose()

    async def register(self, processor: str, container: str) -> None:
        """See `Source.register`. Without the right to write, only a warning is logged."""
        await self._register(Reader.of_processor(container, processor, self.identity or ""), rename=True)

    async def hold(self, name: str, positions: Mapping[str, str]) -> None:
        """See `Source.hold`. Without the right to write, only a warning is logged."""
        await self._register(Reader.at(name, {p: self._number_at(p, position) for p, position in positions.items()}))

    async def let_go(self, name: str) -> None:
        """See `Source.let_go`."""
        with located(self._store.url), suppress(StoreRefused, UsageError):  # UsageError: it is not held
            await remove(self._store, self._readers, name)

    @abstractmethod
    def _number_at(self, partition: str, position: str) -> int:
        """The number that a reader at this position reads next, as the registry of readers counts."""

    async def _register(self, reader: Reader, *, rename: bool = False) -> None:
        try:
            with located(self._store.url):
                self._lowest = (await register(self._store, self._readers, reader, rename=rename)).lowest
        except StoreRefused as error:
            logger.warning("source.reader_not_registered", source=self.url, reader=reader.name, why=str(error))

    def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        """See `Source.read`."""
        return self.read_within(partition, position, ReadBudget.unlimited())

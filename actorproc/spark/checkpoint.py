"""A query's checkpoint: registered as a reader, so that nothing unread is trimmed, and bound to one target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from actorproc.admin.readers import position_of
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.spark_checkpoint import has_begun
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, UsageError
from actorproc.retention.readers import Reader, read_registry, register, remove
from actorproc.runtime.logger import get_logger
from actorproc.storage.document import Document
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

logger = get_logger(__name__)

TARGET_KEY = "actorproc-target.json"
"""Object in the checkpoint folder, beside Spark's own: the target that the query writes to."""


class QueryTarget(Document, frozen=True):
    """The target of a checkpoint's query: format and path."""

    target: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of a query over a processor's output.

    Args:
        url: in Spark's spelling.
        spec: MODULE:FUNCTION of the query.
        store, name: the processor.
        settings: how to reach the checkpoint.
        native: whether the query reads with Spark's own file stream.
    """

    url: str
    spec: str
    store: Store
    name: str
    settings: Settings
    native: bool = False

    async def bind_target(self, target: str) -> None:
        """Note the target of a new query. Refuse another target for a query that has begun.

        Raises:
            UsageError: the query has written to another target. The new one would miss all earlier rows.
            StoreError: the checkpoint cannot be read or written.
        """
        if (reader := self._reader()) is None:
            return
        async with open_store(reader.url, self.settings) as checkpoint:
            stored = await checkpoint.get(TARGET_KEY)
            if stored is not None:
                bound = QueryTarget.from_json(TARGET_KEY, stored.body).target
                if bound == target:
                    return
                if await has_begun(checkpoint):
                    raise UsageError(
                        f"the checkpoint {self.url} belongs to a query that writes to {bound}: {target} would miss all "
                        "rows that were written before. Give the new target a new checkpoint, and it gets all rows; "
                        f"or delete {TARGET_KEY} in the checkpoint, and it gets new rows only"
                    )
            await checkpoint.put(TARGET_KEY, QueryTarget(target=target).to_json())

    async def register(self) -> Reader | None:
        """Register the query as a reader of the output: nothing that it has not read is trimmed.

        Returns:
            The reader if it is new. It must be removed if the query never begins, or it would hold back every trim.

        Raises:
            UsageError: the checkpoint belongs to another query; or the query is new, and its next rows were trimmed.
        """
        reader = self._reader()
        if reader is None:
            logger.warning(
                "spark.not_registered", why=f"the checkpoint {self.url} is in a store that actorproc does not know"
            )
            return None
        if self.native:
            logger.warning(
                "spark.not_registered", why="the position of Spark's own file stream is unknown: trim with care"
            )
            return None
        key = ProcessorLayout(self.name).readers
        before = (await read_registry(self.store, key)).readers
        known = any(other.is_same(reader) for other in before.values())
        position = None if known else await self._position(reader)
        after = (await register(self.store, key, reader, position, rename=True)).readers
        return next((after[name] for name in after if name not in before and after[name].is_same(reader)), None)

    async def unregister(self, reader: Reader, *, refused: bool) -> None:
        """Remove a new reader if its query was `refused`, or has planned no micro-batch that would run again."""
        try:
            if not refused:
                async with open_store(reader.url, self.settings) as checkpoint:
                    if await has_begun(checkpoint):
                        return
            await remove(self.store, ProcessorLayout(self.name).readers, reader.name)
        except ActorprocError as error:  # the query's own failure is reported
            logger.debug("spark.reader_stays", reader=reader.name, error=str(error))

    def _reader(self) -> Reader | None:
        """The reader; None if the checkpoint is in a store that only Hadoop knows."""
        try:
            return Reader.spark(reader_name(self.spec), self.url, self.spec)
        except UsageError:
            return None

    async def _position(self, reader: Reader) -> Mapping[str, int] | None:
        retained = RetainedOutput(self.store, ProcessorLayout(self.name))
        try:
            return await position_of(retained, reader, (), self.settings)
        except ActorprocError as error:  # a foreign or corrupt checkpoint: the query itself will report it
            logger.debug("spark.position_unknown", error=str(error))
            return None


def reader_name(spec: str) -> str:
    """A reader's name such as `app.delays`, limited to the characters that a name may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", spec.replace(":", ".")).lstrip("._-")[-100:].lstrip("._-") or "query"

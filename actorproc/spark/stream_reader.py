"""What a stream keeps on Spark's driver while it runs: the connection, what it has seen, and where it must not go beyond."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from actorproc.retention.spark_offsets import Offset, stream_identity
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.dataset import Span, check_columns
from actorproc.spark.options import ReadOptions
from actorproc.spark.planning import (
    Numbers,
    initial_numbers,
    latest_numbers,
    plan_batch,
    plan_micro_batch,
    split_into_tasks,
)

Document = dict[str, Any]
"""An offset as Spark keeps it."""


def plan(request: ReadOptions, schema: pa.Schema) -> list[list[Span]]:
    """What each task of a batch query reads.

    Raises:
        UsageError: there is no such dataset, or it has other columns than `schema`.
    """
    with open_blocking(request.url, request.settings) as place:
        check_columns(place.call(request.dataset.schema, place.store), schema, request.what)
        return split_into_tasks(place.call(plan_batch, request, place.store), request.tasks)


class Stream:
    """The driver's side of one stream. All calls come from one thread.

    Raises (everywhere):
        UsageError: an offset is of another dataset; or there is no such dataset, or it has other columns than `schema`.
        RecordsLost: files that were to be read next were trimmed. SourceError: the dataset is gone.
    """

    def __init__(self, request: ReadOptions, schema: pa.Schema) -> None:
        self._request = request
        self._stack = ExitStack()
        self._place: BlockingStore = self._stack.enter_context(open_blocking(request.url, request.settings))
        try:
            check_columns(self._place.call(request.dataset.schema, self._place.store), schema, request.what)
            self._of = request.dataset.at(self._place.store.url)
            self._identity = self._place.call(self._identity_now)
        except BaseException:
            self.close()
            raise
        self._last: Document | None = None
        self._idle_until = -math.inf
        self._bounded = False
        self._target: Numbers | None = None
        self.seen: Document | None = None
        """Up to where files were seen, whatever the limits."""

    def close(self) -> None:
        self._stack.close()

    def initial_numbers(self) -> Document:
        """Where a query without a checkpoint begins."""
        self._last = self._document(self._place.call(initial_numbers, self._request, self._place.store))
        return self._last

    def stop_at_what_is_there(self) -> None:
        """From now on go no further than what is there at the next look."""
        self._bounded, self._target = True, None

    def latest(self, start: Document | None, *, limited: bool) -> Document:
        """How far the next micro-batch goes; `start` itself if there is nothing new.

        Args:
            start: where the last one ended; None: the caller does not say (PySpark 4.1), so what it was told last.
            limited: whether the request's limits bound it.
        """
        start = start or self._last or self.initial_numbers()
        self._last = self._place.call(self._latest, start, limited)
        return self._last

    async def _latest(self, start: Document, limited: bool) -> Document:
        request, store = self._request, self._place.store
        numbers = self._numbers(start)
        if store.clock.monotonic() < self._idle_until:
            return start
        if self._bounded and self._target is None:
            self._target, _ = await latest_numbers(request, store, numbers, limited=False, target=None)
        end, seen = await latest_numbers(request, store, numbers, limited=limited, target=self._target)
        self.seen = self._document(seen)
        if all(number <= numbers.get(partition, 0) for partition, number in end.items()):
            self._idle_until = store.clock.monotonic() + request.settings.poll_interval  # Spark asks without a pause
            return start
        # It was listed first: what has its old identity afterwards was the old one then, too.
        Offset.checked(start, self._of, await self._identity_now())
        return self._document(end)

    async def _identity_now(self) -> str:
        dataset = self._request.dataset
        return stream_identity(dataset.kind, await dataset.identity(self._place.store), self._of)

    def plan_micro_batch(self, start: Document, stop: Document) -> list[list[Span]]:
        """What each task reads of what lies between two offsets."""
        self._last = stop
        spans = self._place.call(
            plan_micro_batch, self._request, self._place.store, self._numbers(start), self._numbers(stop)
        )
        return split_into_tasks(spans, self._request.tasks)

    def _numbers(self, found: Mapping[str, Any]) -> Numbers:
        return dict(Offset.checked(found, self._of, self._identity).next)

    def _document(self, numbers: Numbers) -> Document:
        # In order: Spark takes offsets for equal if their JSON is.
        return Offset(self._of, self._identity, dict(sorted(numbers.items()))).to_dict()

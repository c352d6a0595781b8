"""Reads a dataset as a stream: the offsets and the limits of a query, on Spark's driver."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from actorproc.admin.spark_checkpoint import make_offset, offset_numbers, stream_identity
from actorproc.spark.blocking_store import open_blocking
from actorproc.spark.columns import check_columns
from actorproc.spark.dataset import Span
from actorproc.spark.options import ReadOptions
from actorproc.spark.planning import Numbers, initial_numbers, latest_numbers, plan_micro_batch, split_into_tasks
from actorproc.spark.python_worker import called_by_spark
from actorproc.spark.task_reader import TaskReader

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS = True
except ImportError:  # PySpark 4.1 has no limits per trigger
    LIMITS = False

    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]


OffsetDocument = dict[str, Any]
"""An offset as Spark stores it in the checkpoint."""


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's interface to a stream. Its process and its connection to the store live as long as the query."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_planner"}  # tasks do not plan

    @cached_property
    def _planner(self) -> StreamPlanner:
        return StreamPlanner(self._options, self._schema)

    @called_by_spark
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.initial_offset()

    @called_by_spark
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return self._planner.latest_offset(start, limited=LIMITS and not isinstance(limit, ReadAllAvailable))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Shows Spark that there is a limit. If both are given, both apply."""
        if self._options.max_rows:
            return ReadMaxRows(self._options.max_rows)
        return ReadMaxFiles(self._options.max_files) if self._options.max_files else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.stop_at_current_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._planner.seen

    @called_by_spark
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._planner.plan(start, end)]

    def stop(self) -> None:
        if "_planner" in self.__dict__:
            self._planner.close()


class StreamPlanner:
    """Plans the micro-batches of one stream over an open store. All calls come from one thread.

    Raises (every call):
        UsageError: an offset belongs to another dataset; or there is no such dataset, or it has other columns.
        RecordsLost: files that were to be read next were trimmed.
        SourceError: the dataset is gone.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._stack = ExitStack()
        self._blocking = self._stack.enter_context(open_blocking(options.url, options.settings))
        try:
            check_columns(self._blocking.call(options.dataset.schema, self._blocking.store), schema, options.title)
            self._title = options.dataset.title(self._blocking.store.url)
            self._identity = self._blocking.call(self._current_identity)
        except BaseException:
            self.close()
            raise
        self._last: OffsetDocument | None = None
        self._idle_until = -math.inf
        self._stop_at_end = False
        self._target: Numbers | None = None
        self.seen: OffsetDocument | None = None
        """The end of all files that were seen, regardless of limits."""

    def close(self) -> None:
        self._stack.close()

    def initial_offset(self) -> OffsetDocument:
        """Where a query without a checkpoint starts."""
        self._last = self._document(self._blocking.call(initial_numbers, self._options, self._blocking.store))
        return self._last

    def stop_at_current_end(self) -> None:
        """From now on do not pass the end that the next look finds."""
        self._stop_at_end, self._target = True, None

    def latest_offset(self, start: OffsetDocument | None, *, limited: bool) -> OffsetDocument:
        """The end of the next micro-batch; `start` itself if there is nothing new.

        Args:
            start: end of the previous one; None: the last offset that was returned (PySpark 4.1 does not say).
            limited: whether the limits of the options apply.
        """
        start = start or self._last or self.initial_offset()
        self._last = self._blocking.call(self._latest, start, limited)
        return self._last

    async def _latest(self, start: OffsetDocument, limited: bool) -> OffsetDocument:
        options, store = self._options, self._blocking.store
        numbers = self._numbers(start)
        if store.clock.monotonic() < self._idle_until:
            return start
        if self._stop_at_end and self._target is None:
            self._target, _ = await latest_numbers(options, store, numbers, limited=False, target=None)
        end, seen = await latest_numbers(options, store, numbers, limited=limited, target=self._target)
        self.seen = self._document(seen)
        if all(number <= numbers.get(partition, 0) for partition, number in end.items()):
            self._idle_until = store.clock.monotonic() + options.settings.poll_interval  # Spark asks without a pause
            return start
        # Checked after the listing: a dataset that still has its old identity had it during the listing, too.
        offset_numbers(start, self._title, await self._current_identity())
        return self._document(end)

    async def _current_identity(self) -> str:
        dataset = self._options.dataset
        return stream_identity(dataset.kind, await dataset.identity(self._blocking.store), self._title)

    def plan(self, start: OffsetDocument, stop: OffsetDocument) -> list[list[Span]]:
        """The part of each task between two offsets."""
        self._last = stop
        numbers = self._numbers(start), self._numbers(stop)
        spans = self._blocking.call(plan_micro_batch, self._options, self._blocking.store, *numbers)
        return split_into_tasks(spans, self._options.tasks)

    def _numbers(self, document: Mapping[str, Any]) -> Numbers:
        return offset_numbers(document, self._title, self._identity)

    def _document(self, numbers: Numbers) -> OffsetDocument:
        return make_offset(self._title, self._identity, numbers)

"""A streaming query: the user's function over a processor's output, started from its checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from actorproc.errors import HandlerDefinitionError, QueryFailed, UsageError
from actorproc.spark.errors import translate_error
from actorproc.spark.session import Session

PARAMETERS = ("spark", "checkpoint", "trigger")
"""Names of the parameters that a function may take after the rows."""

QueryFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Sink:
    """The sink of a DataFrame that the function returns; fields as for `DataStreamWriter`."""

    format: str = "console"
    path: str | None = None
    mode: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys of a store

    @property
    def output_mode(self) -> str:
        """`update` on the console, since it shows plain rows and aggregations alike; files can only be appended to."""
        return self.mode or ("update" if self.format == "console" else "append")

    @property
    def target(self) -> str:
        """Format and path: rows that went to another target are missing in this one."""
        return " ".join(filter(None, [self.format.lower(), self.path]))

    def __str__(self) -> str:
        return " ".join(filter(None, [self.format, self.path, f"({self.output_mode})"]))


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be started repeatedly; each start continues from its checkpoint.

    Args:
        spec: MODULE:FUNCTION, for messages.
        function: takes the rows, and any of `PARAMETERS` by name. Returns a DataFrame, a DataStreamWriter, or the
            StreamingQuery that it started.
        rows: makes the stream that the function gets.
        checkpoint: URL in Spark's spelling.
        trigger: keywords of `DataStreamWriter.trigger`.
    """

    spec: str
    function: QueryFunction
    rows: Callable[[SparkSession], DataFrame]
    checkpoint: str
    trigger: Mapping[str, Any]
    sink: Sink

    def __post_init__(self) -> None:
        """Raises HandlerDefinitionError: the function does not take the rows, or needs unknown parameters."""
        try:
            inspect.signature(self.function).bind(None, **dict.fromkeys(self._taken))
        except TypeError as error:
            raise HandlerDefinitionError(
                f"{self.spec} must take the rows, and after them it may take {', '.join(PARAMETERS)}: {error}"
            ) from None

    @property
    def _taken(self) -> list[str]:
        """The parameters that the function takes after the rows."""
        names = list(inspect.signature(self.function).parameters)[1:]
        return [name for name in PARAMETERS if name in names]

    def start(self, session: Session, *, restart: bool) -> tuple[StreamingQuery, str]:
        """Start the query. `restart`: it ran before, and failed.

        Returns:
            The running query, and a description of its sink.

        Raises:
            UsageError, StoreError: the rows cannot be read.
            HandlerDefinitionError: the function failed or returned something else, or Spark refuses the query.
            QueryFailed: at a restart, the rows cannot be read. They were readable before, so a retry may help.
            Py4JNetworkError: Spark's Java process has exited.
        """
        spark = session.reopen() if restart else session.open()
        session.activate()
        try:
            rows = self.rows(spark)
        except UsageError as error:
            if restart:
                raise QueryFailed(str(error)) from error
            raise
        return self.start_with(spark, rows)

    def start_with(self, spark: SparkSession, rows: DataFrame) -> tuple[StreamingQuery, str]:
        """Start the query over these rows; otherwise as `start`."""
        try:
            made = self._call(spark, rows)
            query, sink = self._started(made)
        except Py4JNetworkError:
            raise
        except Exception as error:
            raise translate_error(error, f"{self.spec} failed") from error
        if query is made and (other := _other_checkpoint(query, self.checkpoint)) is not None:
            query.stop()
            raise HandlerDefinitionError(
                f"{self.spec} started a query with another checkpoint, {other}: its progress would be unknown. "
                'Give it .option("checkpointLocation", checkpoint); the function gets the URL if it has a parameter '
                "`checkpoint`"
            )
        return query, sink

    def _call(self, spark: SparkSession, rows: DataFrame) -> Any:
        available = {"spark": spark, "checkpoint": self.checkpoint, "trigger": dict(self.trigger)}
        return self.function(rows, **{name: available[name] for name in self._taken})

    def _started(self, made: Any) -> tuple[StreamingQuery, str]:
        """The query that the function started, or that its result defines; and a description of the sink."""
        if _is_a(made, StreamingQuery):
            return made, "defined by the function's query"
        sink = "defined by the function's writer"
        if _is_a(made, DataFrame):
            made, sink = self._writer(made), str(self.sink)
        if not _is_a(made, DataStreamWriter):
            raise HandlerDefinitionError(
                f"{self.spec} returned {made!r:.200}; return a DataFrame, a writer (rows.writeStream...) that is not "
                "started, or the query that you started"
            )
        return made.option("checkpointLocation", self.checkpoint).trigger(**self.trigger).start(), sink

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        if not frame.isStreaming:
            raise HandlerDefinitionError(
                f"{self.spec} returned a DataFrame that is not a stream: derive it from the rows that it is given"
            )
        writer = (
            frame.writeStream.format(self.sink.format).outputMode(self.sink.output_mode).options(**self.sink.options)
        )
        return writer.option("path", self.sink.path) if self.sink.path else writer


def _other_checkpoint(query: StreamingQuery, wanted: str) -> str | None:
    """The query's checkpoint if it is not the `wanted` one. A Spark Connect server does not show it."""
    if not hasattr(query, "_jsq"):
        return None
    execution = query._jsq.streamingQuery()
    context = SparkContext._active_spark_context
    path = context._jvm.org.apache.hadoop.fs.Path(wanted)  # type: ignore[union-attr]
    # In Hadoop's spelling, for example with a default authority.
    qualified = path.getFileSystem(execution.sparkSession().sessionState().newHadoopConf()).makeQualified(path)
    root = str(execution.resolvedCheckpointRoot())
    return None if root == str(qualified.toString()) else root


def _is_a(made: object, kind: type) -> bool:
    """Whether it is of that class, or of the class of the same name in Spark Connect."""
    return isinstance(made, kind) or any(
        base.__name__ == kind.__name__ and base.__module__.startswith("pyspark.sql.connect.")
        for base in type(made).__mro__
    )

"""What a function of the user's makes of a stream of rows, started as a query."""

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

from actorproc.errors import HandlerDefinitionError
from actorproc.spark.errors import translate_error

MORE = ("spark", "checkpoint", "trigger")
"""Names of further parameters that a function may take."""

QueryFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a DataFrame that the function returns goes: as `DataStreamWriter` has it."""

    format: str = "console"
    path: str | None = None
    mode: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys of a store may be among them

    @property
    def output_mode(self) -> str:
        """`update` shows plain rows and aggregations alike, so it is the console's; files can only be appended to."""
        return self.mode or ("update" if self.format == "console" else "append")

    def __str__(self) -> str:
        return " ".join(filter(None, [self.format, self.path, f"({self.output_mode})"]))


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be started again and again, each time from its checkpoint.

    Args:
        spec: MODULE:FUNCTION, for messages.
        function: takes the rows, and by name any of `MORE`; returns a DataFrame, a DataStreamWriter, or the
            StreamingQuery that it started.
        checkpoint: URL, as Spark spells it.
        trigger: keywords of `DataStreamWriter.trigger`.
    """

    spec: str
    function: QueryFunction
    checkpoint: str
    trigger: Mapping[str, Any]
    sink: Sink

    def __post_init__(self) -> None:
        """Raises HandlerDefinitionError: the function takes something that we do not have."""
        parameters = list(inspect.signature(self.function).parameters.values())
        names = [
            p.name for p in parameters[1:] if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        if not parameters or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
            raise HandlerDefinitionError(f"{self.spec} must take the rows: def {self._name}(rows)")
        if unknown := [name for name in names if name not in MORE]:
            raise HandlerDefinitionError(
                f"{self.spec} takes {', '.join(unknown)}; there are, after the rows: {', '.join(MORE)}"
            )

    @property
    def _name(self) -> str:
        return self.spec.rpartition(":")[2]

    def start(self, spark: SparkSession, rows: DataFrame) -> tuple[StreamingQuery, str]:
        """Call the function, and start what it returns; and where that writes, for people.

        Raises:
            HandlerDefinitionError: it failed, or returned something else; or Spark refuses what it returned.
            Py4JNetworkError: Spark's Java has ended.
        """
        more = {"spark": spark, "checkpoint": self.checkpoint, "trigger": dict(self.trigger)}
        writes = "where the function's own query says"
        taken = inspect.signature(self.function).parameters
        try:
            made = self.function(rows, **{name: more[name] for name in MORE if name in list(taken)[1:]})
            if _is_a(made, DataFrame):
                made, writes = self._writer(made), str(self.sink)
            elif _is_a(made, DataStreamWriter):
                writes = "where the function's own writer says"
            own = _is_a(made, StreamingQuery)
            if _is_a(made, DataStreamWriter):
                made = made.option("checkpointLocation", self.checkpoint).trigger(**self.trigger).start()
        except Py4JNetworkError:
            raise
        except Exception as error:
            raise translate_error(error, f"{self.spec} failed") from error
        if not _is_a(made, StreamingQuery):
            raise HandlerDefinitionError(
                f"{self.spec} returned {made!r:.200}; return a DataFrame, a writer (rows.writeStream...) that is not "
                "started, or the query that you started"
            )
        query: StreamingQuery = made
        if own and (root := _other_checkpoint(query, self.checkpoint)) is not None:
            query.stop()
            raise HandlerDefinitionError(
                f"{self.spec} started a query with a checkpoint of its own, {root}, of which nobody would know how far it is: "
                'give it .option("checkpointLocation", checkpoint); the function gets it if it has a parameter of that name'
            )
        return query, writes

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        if not frame.isStreaming:
            raise HandlerDefinitionError(
                f"{self.spec} returned a DataFrame that is no stream: it must be made of the rows that it is given"
            )
        writer = (
            frame.writeStream.format(self.sink.format).outputMode(self.sink.output_mode).options(**self.sink.options)
        )
        return writer.option("path", self.sink.path) if self.sink.path else writer


def _other_checkpoint(query: StreamingQuery, wanted: str) -> str | None:
    """Where its checkpoint is, if that is not where it is `wanted`. A Spark Connect server does not say."""
    if not hasattr(query, "_jsq"):
        return None
    execution = query._jsq.streamingQuery()
    context = SparkContext._active_spark_context
    path = context._jvm.org.apache.hadoop.fs.Path(wanted)  # type: ignore[union-attr]
    # In Hadoop's spelling: with a default authority, say, and without what it takes out of a path.
    spelt = path.getFileSystem(execution.sparkSession().sessionState().newHadoopConf()).makeQualified(path)
    root = str(execution.resolvedCheckpointRoot())
    return None if root == str(spelt.toString()) else root


def _is_a(made: object, kind: type) -> bool:
    """Whether it is of that kind, or of the class of the same name that Spark Connect has."""
    return isinstance(made, kind) or any(
        base.__name__ == kind.__name__ and base.__module__.startswith("pyspark.sql.connect.")
        for base in type(made).__mro__
    )

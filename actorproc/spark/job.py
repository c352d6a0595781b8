"""A job: a session, the rows that it reads and the query on them; all that it takes to start, and to start again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

from actorproc.config.settings import Settings
from actorproc.errors import QueryFailed, UsageError
from actorproc.spark.dataframes import stream_output
from actorproc.spark.query import Query
from actorproc.spark.session import Session


@dataclass(frozen=True, slots=True)
class Job:
    """`container` and `name`: whose output is read; the other fields as `stream_output` has them."""

    session: Session
    query: Query
    container: str
    name: str
    columns: Sequence[str] | None = None
    max_rows: int | None = None
    max_files: int | None = None
    native: bool = False
    settings: Settings = field(default_factory=Settings.load)
    """With which this process reaches the store."""
    told: Settings | None = None
    """With which Spark does; a Spark Connect server has its own for what these leave open. None: the same."""

    def start(self, again: bool) -> tuple[StreamingQuery, str]:
        """Start the query; and where it writes, for people. `again`: it ran before, and failed.

        Raises:
            UsageError, StoreError, QueryFailed: it cannot be started. No UsageError for what is read, once it ran: that was
                there, and may come back.
        """
        spark = self.session.again() if again else self.session.open()
        self.session.enter()
        try:
            rows = stream_output(
                spark, self.container, self.name, columns=self.columns, max_rows=self.max_rows, max_files=self.max_files,
                native=self.native, settings=self.told or self.settings,
            )  # fmt: skip
        except UsageError as error:
            if again:
                raise QueryFailed(str(error)) from error
            raise
        return self.query.start(spark, rows)

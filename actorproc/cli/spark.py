"""`actorproc spark`: a function of the user's over what a processor commits, run by Spark as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Annotated, Any

import typer
from typer.main import get_command

from actorproc.cli.parameters import Config, Container, Name, Set, count, location
from actorproc.cli.usage import Command, message_of
from actorproc.errors import UsageError


def spark(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Takes the rows: app:delays is def delays(rows) of app.py.")
    ],
    name: Name,
    container: Container,
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=location,
            help="Where Spark notes how far the query is: a folder or bucket of its own.",
        ),
    ],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="Where a DataFrame goes: console, parquet, delta, iceberg, kafka...")
    ] = "console",
    path: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=location, help="The table's place, for formats that have one."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="append|update|complete", help="Default: update for the console, append elsewhere."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the format; repeatable."),
    ] = None,
    trigger: Annotated[
        str,
        typer.Option(
            metavar="TIME|available-now",
            help="How often to look: 10s, 1m; a bare number is seconds. Or what is there now, then end.",
        ),
    ] = "10s",
    max_rows: Annotated[
        int | None, typer.Option(parser=count, metavar="N", help="About so many rows in a micro-batch; default: all.")
    ] = None,
    max_files: Annotated[int | None, typer.Option(parser=count, metavar="N", help="The same, in files.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Read only these; Spark does not prune them by itself.")
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Read with Spark's own file stream (docs/spark.md compares).")
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="local[2,4], spark://host:7077; default: all cores here.")
    ] = None,
    remote: Annotated[
        str | None, typer.Option(metavar="URL", envvar="SPARK_REMOTE", help="Spark Connect, such as sc://host:15002.")
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP:NAME:VERSION", help="Jars from Maven Central for the session; repeatable."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any option of Spark's; wins over what is set for you; repeatable."),
    ] = None,
    max_failures: Annotated[
        int, typer.Option(parser=count, metavar="N", help="Give up after N failures without a micro-batch in between.")
    ] = 10,
    stop_within: Annotated[
        str, typer.Option(metavar="TIME", help="How long the micro-batch under way may take to end on SIGTERM.")
    ] = "30s",
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for a processor that has never run to begin.")
    ] = "0s",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Run a function of yours over what a processor commits, as a stream on Spark. Each row comes once.

    \b
      # app.py
      def delays(rows):
          return rows.groupBy("carrier").count()

    \b
      export ACTORPROC_NAME=Delays ACTORPROC_CONTAINER=state
      actorproc spark app:delays --checkpoint spark/delays
      actorproc spark app:delays --checkpoint spark/delays --trigger available-now
      actorproc spark app:f --checkpoint s3://bucket/c --master spark://host:7077
      actorproc spark app:flights --checkpoint c --to parquet --path tables/f

    The function takes the rows and, by name if it wants them, `spark`, `checkpoint` and `trigger`. It returns a
    DataFrame; or a writer (`rows.writeStream.foreachBatch(...)`), which is started with checkpoint and trigger;
    or a query that it started. A query that fails is started again and goes on from its checkpoint.

    SIGTERM or Ctrl-C lets the micro-batch end; a second one ends at once. Needs Java 17 or newer, and the extra
    `spark`.
    """
    asked = dict(locals())
    _check_extra()
    from actorproc.cli.spark_query import SparkArguments, run

    run(SparkArguments.of(asked), config, settings)


def check(spark_option: str, words: Sequence[str]) -> None:
    """Before the hosts begin whose rows a query is to read: whether this command, given these words, can begin.

    Args:
        spark_option: of `serve --spark`, in which the words were given.

    Raises:
        UsageError: PySpark, Java or the function is not there, or the words are not what this command takes.
    """
    asked: dict[str, Any] = {}

    @wraps(spark)
    def note(**given: Any) -> None:
        asked.update(given)

    app = typer.Typer()
    app.command(cls=Command, add_help_option=False)(note)
    try:
        get_command(app).main(list(words), "actorproc spark", standalone_mode=False)
    except Exception as error:
        if (message := message_of(error)) is None:
            raise
        raise UsageError(f"--spark {spark_option!r}: {message}") from None
    _check_extra()
    from actorproc.cli.spark_query import SparkArguments, prepare

    prepare(SparkArguments.of(asked), "serve --spark")


def _check_extra() -> None:
    try:
        import actorproc.spark  # noqa: F401
    except ImportError as error:  # no PySpark, or an old one
        raise UsageError(str(error)) from None

"""`actorproc spark`: runs the user's function over a processor's committed output, as a stream on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Annotated, Any

import typer
from typer.main import get_command

from actorproc.cli.parameters import Config, Container, Name, Set, count, location
from actorproc.cli.usage import message_of
from actorproc.errors import UsageError


def spark(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="app:delays is def delays(rows) in app.py.")
    ],
    name: Name,
    container: Container,
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=location,
            help="Folder or bucket for the query's position; it belongs to one function and target.",
        ),
    ],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="Sink of a DataFrame: console, parquet, delta, iceberg, kafka...")
    ] = "console",
    path: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=location, help="Location of the table, for formats that need one."),
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
            help="Time between micro-batches: 10s, 1m, or seconds. available-now: process existing rows, then exit.",
        ),
    ] = "10s",
    max_rows: Annotated[
        int | None, typer.Option(parser=count, metavar="N", help="Approximate limit of a micro-batch; default: none.")
    ] = None,
    max_files: Annotated[int | None, typer.Option(parser=count, metavar="N", help="The same limit in files.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Read only these columns; Spark does not prune them.")
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Read with Spark's own file stream (see docs/spark.md).")
    ] = False,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="local[2,4], spark://host:7077; default: all cores here.")
    ] = None,
    remote: Annotated[
        str | None, typer.Option(metavar="URL", envvar="SPARK_REMOTE", help="Spark Connect, such as sc://host:15002.")
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP:NAME:VERSION", help="JARs from Maven Central; repeatable."),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of Spark; overrides ours; repeatable."),
    ] = None,
    max_failures: Annotated[int, typer.Option(parser=count, metavar="N", help="End after N failures in a row.")] = 10,
    stop_within: Annotated[
        str, typer.Option(metavar="TIME", help="Time for the current micro-batch to finish on SIGTERM.")
    ] = "30s",
    wait: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for the processor's first start.")] = "0s",
    config: Config = None,
    settings: Set = None,
) -> None:
    """Run your function over a processor's committed output, as a stream on Spark. Each row is read once.

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

    The function takes the rows, and optionally parameters named `spark`, `checkpoint` and `trigger`. It returns a
    DataFrame; or a writer (`rows.writeStream.foreachBatch(...)`), which is started with the checkpoint and the
    trigger; or a query that it has started. A query that fails is restarted from its checkpoint.

    SIGTERM or Ctrl-C finishes the current micro-batch; a second one exits at once. Needs Java 17 or newer, and the
    extra `spark`.
    """
    given = dict(locals())
    _check_extra()
    from actorproc.cli.spark_arguments import SparkArguments
    from actorproc.cli.spark_query import run

    run(SparkArguments.parse(given), config, settings)


def check(spark_option: str, words: Sequence[str]) -> None:
    """Check the query of `serve --spark` before the hosts start.

    Args:
        spark_option: the value of `--spark`, for messages.
        words: the value split into words: arguments of this command.

    Raises:
        UsageError: PySpark, Java or the function is missing, or this command does not take the words.
    """
    parameters: dict[str, Any] = {}

    @wraps(spark)
    def collect(**given: Any) -> None:
        parameters.update(given)

    app = typer.Typer()
    app.command(add_help_option=False)(collect)
    try:
        get_command(app).main(list(words), "actorproc spark", standalone_mode=False)
    except Exception as error:
        if (message := message_of(error)) is None:
            raise
        raise UsageError(f"--spark {spark_option!r}: {message}") from None
    _check_extra()
    from actorproc.cli.spark_arguments import SparkArguments

    SparkArguments.parse(parameters).check("serve --spark")


def _check_extra() -> None:
    try:
        import actorproc.spark  # noqa: F401
    except ImportError as error:  # PySpark is missing or too old
        raise UsageError(str(error)) from None

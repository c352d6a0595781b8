"""The command line: the app, its commands, and the one place that turns errors into messages and exit codes.

Heavy parts (pyarrow, pydantic, the S3 client) are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import Annotated, Any

import typer

from actorproc.cli import commands, retention
from actorproc.cli.demo import demo
from actorproc.cli.escape import escaped
from actorproc.cli.help import Command, Group
from actorproc.cli.logging import LogLevel, set_up_logging
from actorproc.cli.spark import spark
from actorproc.cli.streams import prepare, stdout_failure
from actorproc.errors import ActorprocError, UsageError

FAILED, WRONG_USE = 1, 2

_ORDER = [
    "produce",
    "serve",
    "spark",
    "status",
    "output",
    "dead-letters",
    "readers",
    "trim",
    "compact",
    "doctor",
    "demo",
]  # in which they are met

_THREAD_PATIENCE = 1.0  # seconds that threads have to end by themselves, after everything else has ended


class _Commands(Group):
    """The root of all commands: every error that is ours leaves as a message and an exit code, without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe should show here, not when the interpreter ends
            return result
        except (ActorprocError, OSError, ExceptionGroup) as error:
            from actorproc.runtime.tasks import first_cause

            cause = first_cause(error)
            if isinstance(cause, OSError) and (failure := stdout_failure()) is not None:
                raise typer.Exit(_say_unwritten(failure)) from None
            if not isinstance(cause, ActorprocError):
                raise
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            typer.secho(f"error: {escaped(str(cause))}", err=True, fg=typer.colors.RED)
            raise typer.Exit(WRONG_USE if isinstance(cause, UsageError) else FAILED) from None


def _say_unwritten(failure: OSError) -> int:
    """The exit code where stdout does not take what a command prints: whose reader has gone (`| head`) has seen enough."""
    if isinstance(failure, BrokenPipeError):
        return 0
    typer.secho(f"error: stdout cannot be written: {failure.strerror}", err=True, fg=typer.colors.RED)
    return FAILED


app = typer.Typer(
    name="actorproc",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 done, 1 failed while running or not all done, 2 wrong use.",
)
app.add_typer(commands.app)
app.add_typer(retention.app)
app.command(cls=Command)(demo)
app.command(cls=Command)(spark)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"actorproc {version('actorproc')}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", envvar="ACTORPROC_DEBUG", help="Show tracebacks.")] = False,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            metavar="debug|info|warning|error",
            envvar="ACTORPROC_LOG_LEVEL",
            help="Of the log on stderr.",
            case_sensitive=False,
        ),
    ] = LogLevel.INFO,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Partition processor: many hosts share one stream; output is exactly once. One bucket or folder is enough.

    \b
      actorproc produce --log events --partitions 8 --key tail events.jsonl
      actorproc serve app:Delays --source events --container state --workers 2
      actorproc status --name Delays --container state --source events
      actorproc output --name Delays --container state --limit 5
      actorproc dead-letters list --name Delays --container state

    Places are folders or URLs: state, file:///var/state, s3://bucket/prefix.
    Settings have one name everywhere: --set commit_interval=1s, ACTORPROC_COMMIT_INTERVAL=1s, actorproc.toml.
    """
    set_up_logging(log_level)


def main() -> None:
    """Entry point of the `actorproc` command."""
    prepare()
    try:
        app()
    except OSError:  # of --help
        if (failure := stdout_failure()) is None:
            raise
        sys.exit(_say_unwritten(failure))
    except SystemExit as ending:
        with suppress(OSError):
            sys.stdout.flush()  # not when the interpreter ends: that would change the exit code
        unread = isinstance(ending.__context__, BrokenPipeError)  # which Typer takes for a failure
        if stdout_failure() is not None and unread:
            sys.exit(0)
        raise
    finally:
        _abandon_threads()


def _abandon_threads() -> None:
    """End the process although a thread hangs (a handler's, Spark's): Python would wait for it for ever."""
    threads = [thread for thread in threading.enumerate() if thread.name == "AnyIO worker thread"]
    for thread in threads:
        thread.join(_THREAD_PATIENCE / len(threads))
    if any(thread.is_alive() for thread in threads):
        error = sys.exception()
        code = FAILED
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else FAILED
        elif error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        typer.secho("warning: a thread still runs (a handler's, or Spark's); it ends with the process", err=True)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)

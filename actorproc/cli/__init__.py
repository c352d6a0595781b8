"""The command line: the app, and the one place that turns errors into messages and exit codes.

Heavy parts (pyarrow, pydantic, the S3 client) are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from actorproc import plugins
from actorproc.cli import (
    checkpoint_commands,
    commands,
    dead_letter_commands,
    fleet_commands,
    inventory_commands,
    look_commands,
    retention,
    schema_commands,
    sinks,
    state_commands,
)
from actorproc.cli.exit_codes import FAILED, WRONG_USE
from actorproc.cli.logging import FORMATS, LEVELS, set_up_logging
from actorproc.cli.parameters import one_of
from actorproc.cli.streams import escaped, has_color, prepare, stdout_failure
from actorproc.cli.usage import Group, message_of
from actorproc.errors import ActorprocError, UsageError
from actorproc.runtime.logger import set_up_now

_THREAD_PATIENCE = 1.0  # seconds that threads get to end by themselves, after everything else has ended


class _Commands(Group):
    """The root command. Our errors and usage errors become one line on stderr and an exit code.

    A command is made when it is used or described. Commands that packages register (docs/extend.md) are also imported
    then; they cannot replace one of ours.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_OURS, *(name for name in plugins.names(plugins.COMMANDS) if name not in _OURS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            if cmd_name in _OURS:
                self.add_command(typer.main.get_group(_OURS[cmd_name]).commands[cmd_name], cmd_name)
            elif cmd_name in plugins.names(plugins.COMMANDS):
                self.add_command(_registered(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args:
            self.get_command(ctx, args[0])
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            sys.exit(super().main(*args, **options | {"standalone_mode": False}) or 0)
        except typer.Abort:
            _print_error("aborted")
            sys.exit(FAILED)
        except Exception as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(error, err=True)
                sys.exit(WRONG_USE)
            if (message := message_of(error)) is None:
                raise
            _print_error(message)
            sys.exit(WRONG_USE)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe should show here, not when the interpreter ends
            return result
        except (ActorprocError, OSError, ExceptionGroup) as error:
            from actorproc.runtime.tasks import first_cause

            cause = first_cause(error)
            if isinstance(cause, OSError) and (failure := stdout_failure()) is not None:
                raise typer.Exit(_unwritten(failure)) from None
            if not isinstance(cause, ActorprocError | OSError):
                raise
            if ctx.params.get("debug"):
                typer.echo(escaped("".join(traceback.format_exception(error))), err=True, nl=False)
            _print_error(str(cause) if isinstance(cause, ActorprocError) else _of_the_system(cause))
            raise typer.Exit(WRONG_USE if isinstance(cause, UsageError) else FAILED) from None


def _registered(name: str) -> Any:
    """The command of an entry point: a function, or a Typer of several. One that cannot be used says why."""
    try:
        found = plugins.load(plugins.COMMANDS, name)
        return typer.main.get_command(found) if isinstance(found, typer.Typer) else _alone(name, found)
    except UsageError as error:
        return _broken(name, str(error))
    except Exception as error:  # noqa: BLE001  # Typer has many errors for functions that cannot be commands
        return _broken(name, f"{name}: {error}")


def _alone(name: str, function: Callable[..., Any], **context: bool) -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name, context_settings=context)(function)
    return typer.main.get_command(app)


def _broken(name: str, why: str) -> Any:
    def command() -> None:
        raise UsageError(why)

    command.__doc__ = f"(cannot be used: {escaped(why)})"
    return _alone(name, command, ignore_unknown_options=True, allow_extra_args=True)


def _print_error(text: str) -> None:
    typer.secho(f"error: {escaped(text)}", err=True, fg=typer.colors.RED if has_color(sys.stderr) else None)


def _of_the_system(error: OSError) -> str:
    where = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror or error or type(error).__name__}{where} (--debug shows what was being done)"


def _unwritten(failure: OSError) -> int:
    """The exit code if stdout cannot be written. A reader that closed its pipe (`| head`) has read enough."""
    if isinstance(failure, BrokenPipeError):
        return 0
    _print_error(f"stdout cannot be written: {failure.strerror}")
    return FAILED


def _apart(app: Any) -> Iterator[tuple[str, typer.Typer]]:
    """Each command of an app, or group that has a name, in an app of its own."""
    if app.info.name:
        alone = typer.Typer(rich_markup_mode=None)
        alone.add_typer(app)
        yield app.info.name, alone
        return
    for command in app.registered_commands:
        alone = typer.Typer(rich_markup_mode=None)
        alone.registered_commands.append(command)
        yield command.name or command.callback.__name__.replace("_", "-"), alone
    for group in app.registered_groups:
        yield from _apart(group.typer_instance)


_PARTS = [part.app for part in (commands, look_commands, fleet_commands, checkpoint_commands, inventory_commands)]
_PARTS += [dead_letter_commands.app, dead_letter_commands.top_level]
_PARTS += [part.app for part in (retention, sinks, state_commands, schema_commands)]

# One by one, as Typer takes longer to make all of them than most of them run.
_OURS = {name: alone for part in _PARTS for name, alone in _apart(part)}

app = typer.Typer(
    name="actorproc",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Exit codes: 0 done; 1 failed, or not all done; 2 wrong use.",
)


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
        str,
        typer.Option(
            parser=one_of(*LEVELS),
            metavar="|".join(LEVELS),
            envvar="ACTORPROC_LOG_LEVEL",
            help="Lowest level of log lines on stderr.",
        ),
    ] = "info",
    log_format: Annotated[
        str | None,
        typer.Option(
            parser=one_of(*FORMATS),
            metavar="|".join(FORMATS),
            envvar="ACTORPROC_LOG_FORMAT",
            help="Format of log lines. Default: console on a terminal, otherwise json.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Partition processor: many hosts share one stream; output is exactly once. One bucket or folder is enough.

    \b
      actorproc produce --log events --partitions 8 --key tail events.jsonl
      actorproc serve app:Delays --source events --container state --workers 2
      actorproc status --name Delays --container state --source events
      actorproc output --name Delays --container state
      actorproc dead-letters list --name Delays --container state

    A URL is a folder or a bucket: state, file:///var/state, s3://bucket/prefix,
    az://account/container/prefix, gs://bucket/prefix.

    A setting has the same name everywhere: --set commit_interval=1s, ACTORPROC_COMMIT_INTERVAL=1s, actorproc.toml.
    """
    set_up_logging(log_level, log_format)
    if (
        (name := ctx.invoked_subcommand) is not None
        and name not in _OURS
        and not plugins.is_ours(plugins.COMMANDS, name)
    ):
        set_up_now()
    try:
        os.getcwd()  # noqa: PTH109  # nothing else is wanted
    except OSError as error:
        raise UsageError(f"the working directory cannot be used: {error.strerror}. Change to another one") from None


def main() -> None:
    """Entry point of the `actorproc` command."""
    prepare()
    try:
        app()
    except OSError:  # of --help
        if (failure := stdout_failure()) is None:
            raise
        sys.exit(_unwritten(failure))
    except SystemExit as ending:
        with suppress(OSError):
            sys.stdout.flush()  # if the interpreter did this at its end, the exit code would change
        unread = isinstance(ending.__context__, BrokenPipeError)  # which Typer takes for a failure
        if stdout_failure() is not None and unread:
            sys.exit(0)
        raise
    finally:
        _abandon_threads()


def _abandon_threads() -> None:
    """End the process although a thread of a handler or of Spark hangs: Python would wait for it forever."""
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
        typer.secho("warning: a thread of the handler or of Spark still runs; it ends with the process", err=True)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)

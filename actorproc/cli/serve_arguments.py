"""The arguments of `actorproc serve`: as options of the command line, of worker processes, and of a `Processor`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actorproc.cli.parameters import Config, Container, Set, Source, SourceOption, StartFrom, count, location

if TYPE_CHECKING:
    from actorproc.processor import Processor


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """One call of `serve`. Typer makes its options from these fields."""

    ctx: typer.Context
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="The handler: app:Delays is class Delays of app.py.")
    ]
    source: Source
    container: Container
    source_option: SourceOption = None
    sink: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL",
            help="Deliver the rows to another system, such as warehouse=postgresql://me@db/orders; repeatable.",
        ),
    ] = None
    sink_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.OPTION=VALUE",
            help="An option of a sink, such as warehouse.table=orders; @PATH: the content of a file; repeatable.",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESSOR", envvar="ACTORPROC_NAME", help="Name of the processor. Default: name of the class."
        ),
    ] = None
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="ACTORPROC_HOST", help="Unique name of the host. Default: machine and process id."
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            parser=count,
            metavar="N",
            help="Run N host processes, NAME-0 and so on. A process that dies is restarted.",
        ),
    ] = None
    start: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|TIME",
            help="Where partitions without a checkpoint begin; TIME such as 2013-01-01T00:00Z.",
        ),
    ] = "earliest"
    start_from: StartFrom = None
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end",
            help="Stop once everything that was in the source at the start is committed. Exit code 1 if it fails.",
        ),
    ] = False
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="An option of the handler (its class `Options`), lists and objects as JSON; repeatable.",
        ),
    ] = None
    spark: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Run `actorproc spark` on the rows as a child process; its options may follow, as in "
            "'app:delays --trigger 5s'.",
        ),
    ] = None
    spark_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=location, help="Checkpoint of that Spark query."),
    ] = None
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve health, metrics and the dashboard there, such as 127.0.0.1:8600. Worker number i of --workers "
            "takes port + i. Other than loopback addresses need ACTORPROC_HTTP_TOKEN.",
        ),
    ] = None
    hooks: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS", help="An actorproc.Hooks of yours: its methods are called for what happens here."
        ),
    ] = None
    config: Config = None
    settings: Set = None

    def processor(self) -> Processor:
        """The host that these arguments describe. Nothing is opened yet.

        Raises:
            UsageError: an argument is wrong.
        """
        # Imported here: Typer needs the fields alone, also for --help.
        from actorproc.cli.common import load_settings, pairs, setting_keywords, sink_settings
        from actorproc.cli.loading import load_handler, load_hooks, load_source
        from actorproc.config.settings import Settings
        from actorproc.processor import Processor

        keywords = setting_keywords(self.settings, self.source_option, sink_settings(self.sink, self.sink_option))
        if not keywords.keys() <= Settings.model_fields.keys():
            load_settings(
                self.config, self.settings
            )  # raises: Processor would take `--set start=x` for its own `start`
        return Processor(
            load_handler(self.handler),
            source=load_source(self.source),
            container=self.container,
            name=self.name,
            host=self.host,
            start=self.start,
            start_from=self.start_from,
            hooks=load_hooks(self.hooks) if self.hooks else None,
            options=pairs("--option", self.option),
            config=self.config,
            **keywords,
        )

    def place(self, name: str) -> list[str]:
        """The options by which other commands find the processor, which has this name."""
        return ["--name", name, "--container", self.container, *(["--config", str(self.config)] if self.config else [])]

    def worker(self, host: str, http: list[str]) -> list[str]:
        """The arguments of a process that serves as this host. `http`: its option `--http`, if it has one."""
        return [*self.root(), "serve", *_given(self.ctx, _OF_THE_PARENT), "--host", host, *http]

    def root(self) -> list[str]:
        """The options before the command."""
        return _given(self.ctx.parent) if self.ctx.parent else []


_OF_THE_PARENT = ("workers", "host", "http", "spark", "spark_checkpoint")


def _given(ctx: Any, without: Collection[str] = ()) -> list[str]:
    """The arguments of a command as the command line gave them. A child process takes others from the environment."""
    words: list[str] = []
    for parameter in ctx.command.params:
        if parameter.name in without or ctx.get_parameter_source(parameter.name).name != "COMMANDLINE":
            continue
        option = parameter.opts[:1] if parameter.param_type_name == "option" else []
        value = ctx.params[parameter.name]
        for one in value if isinstance(value, list | tuple) else [value]:
            words += option if one is True else [*option, str(one)]
    return words

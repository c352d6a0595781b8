"""Options that several commands share, with one name, one help text and one meaning in all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

_IN_MEMORY = re.compile(r"(actorproc\+)?memory:")


def place(value: str | None) -> str | None:
    """A place that is given: where things stay. Empty, as a variable that is not set makes it, is no default."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty; give a folder or a URL")
    if value is not None and _IN_MEMORY.match(value):
        raise typer.BadParameter(
            f"{value} lives in one process, and is gone with it (it is for tests, in Python); give a folder instead"
        )
    return value


Name = Annotated[
    str, typer.Option("--name", metavar="PROCESSOR", envvar="ACTORPROC_NAME", help="Name of the processor.")
]
Container = Annotated[
    str,
    typer.Option(
        metavar="URL",
        callback=place,
        envvar="ACTORPROC_CONTAINER",
        help="Where the processor keeps everything it owns: a folder or bucket.",
    ),
]
MaybeName = Annotated[
    str | None,
    typer.Option("--name", metavar="PROCESSOR", envvar="ACTORPROC_NAME", help="The processor whose output it is."),
]
MaybeContainer = Annotated[
    str | None,
    typer.Option(
        "--container",
        metavar="URL",
        callback=place,
        envvar="ACTORPROC_CONTAINER",
        help="Where that processor keeps it.",
    ),
]
MaybeLog = Annotated[
    str | None, typer.Option("--log", metavar="URL", callback=place, help="A log, instead of a processor's output.")
]
Source = Annotated[
    str,
    typer.Option(
        metavar="URL",
        callback=place,
        envvar="ACTORPROC_SOURCE",
        help="The log that is processed; or another processor's output, as actorproc+URL/NAME; "
        "or MODULE:NAME of a source of your own.",
    ),
]
SourceLog = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        callback=place,
        envvar="ACTORPROC_SOURCE",
        help="The log to which the letters are appended. Default: the one that the processor reads.",
    ),
]
MaybeSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        callback=place,
        envvar="ACTORPROC_SOURCE",
        help="The log that is processed: adds end and lag.",
    ),
]
Partition = Annotated[str | None, typer.Option(metavar="P", help="Only this partition.")]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout.")]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings and options as TOML; default: actorproc.toml, if it is here."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting, such as commit_interval=500ms; repeatable.",
    ),
]

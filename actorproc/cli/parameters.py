"""Options that several commands share, and parsers of option values whose messages are ours."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

_MOST = 10**15  # of a number; products of larger ones overflow
_DIGITS = 20  # of a whole number; Python refuses to read thousands of them

_IN_MEMORY = re.compile(r"(actorproc\+)?memory:")


def location(value: str | None) -> str | None:
    """Check a folder or URL. It is empty where a shell variable was not set, which must not select a default."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty; give a folder or a URL")
    if value is not None and _IN_MEMORY.match(value):
        raise typer.BadParameter(f"{value} exists in one process only, for tests in Python; give a folder instead")
    return value


def count(text: object) -> int:
    """A whole number, 1 or more."""
    return between(1)(text)


def between(least: int, most: int | None = None) -> Callable[[object], int]:
    """Parser of a whole number within these limits."""

    def parse(text: object) -> int:
        digits = str(text)
        is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
        if not is_number or not least <= int(digits) <= (_MOST if most is None else most):
            limits = f"{least} or more" if most is None else f"{least} to {most}"
            raise typer.BadParameter(f"{digits[:_DIGITS]!r}: write a whole number, {limits}")
        return int(digits)

    return parse


def positive(text: object) -> float:
    """A number above 0. Its reciprocal is a number, too."""
    if not 1 / _MOST <= (number := _number(text)) <= _MOST:
        raise typer.BadParameter(f"{text!r}: write a number above 0")
    return number


def not_negative(text: object) -> float:
    """A number, 0 or more."""
    if not 0 <= (number := _number(text)) <= _MOST:
        raise typer.BadParameter(f"{text!r}: write a number, 0 or more")
    return number


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def one_of(*choices: str) -> Callable[[object], str]:
    """Parser of one of these words, in any case."""

    def parse(text: object) -> str:
        word = str(text).lower()
        if word not in choices:
            raise typer.BadParameter(f"{text!r}: write one of {', '.join(choices)}")
        return word

    return parse


Name = Annotated[
    str, typer.Option("--name", metavar="PROCESSOR", envvar="ACTORPROC_NAME", help="Name of the processor.")
]
Container = Annotated[
    str,
    typer.Option(
        metavar="URL",
        callback=location,
        envvar="ACTORPROC_CONTAINER",
        help="Folder or bucket that holds everything the processor owns.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without it nothing is changed.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the audit.")]
MaybeName = Annotated[
    str | None,
    typer.Option("--name", metavar="PROCESSOR", envvar="ACTORPROC_NAME", help="The processor that owns the output."),
]
MaybeContainer = Annotated[
    str | None,
    typer.Option(
        "--container",
        metavar="URL",
        callback=location,
        envvar="ACTORPROC_CONTAINER",
        help="Container of that processor.",
    ),
]
MaybeLog = Annotated[
    str | None,
    typer.Option("--log", metavar="URL", callback=location, help="A log, instead of a processor's output."),
]
Source = Annotated[
    str,
    typer.Option(
        metavar="URL",
        callback=location,
        envvar="ACTORPROC_SOURCE",
        help="A log; kafka://BROKER/TOPIC, eventhubs://NAMESPACE/HUB or oci-streaming://REGION/STREAM?pool=OCID; "
        "eventhubs+amqp://NAMESPACE/HUB; cosmos://ACCOUNT/DATABASE/CONTAINER; kinesis://REGION/STREAM; "
        "another processor's output, as actorproc+URL/NAME; or a source of your own, as MODULE:NAME.",
    ),
]
SourceLog = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        callback=location,
        envvar="ACTORPROC_SOURCE",
        help="The stream that receives the letters. Default: the stream that the processor reads.",
    ),
]
Into = Annotated[
    str | None,
    typer.Option(
        metavar="LOG",
        callback=location,
        help="A built-in log that receives the letters instead. For processors of what can only be read.",
    ),
]
MaybeSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        callback=location,
        envvar="ACTORPROC_SOURCE",
        help="The source that is processed; adds its end and the lag.",
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A property of the source's client, for Kafka one of librdkafka's; for a log in another account a setting "
        "of its store, such as s3_access_key. @PATH: the content of a file, for secrets. Repeatable.",
    ),
]
StartFrom = Annotated[
    str | None,
    typer.Option(
        metavar="CONSUMER",
        help="Begin where another consumer of the source is (kafka-group:NAME, eventhubs-checkpoints:URL, "
        "cosmos-leases:URL or kcl:NAME), for partitions without a checkpoint; where it has no position, --start "
        "decides.",
    ),
]
Partition = Annotated[str | None, typer.Option(metavar="P", help="Only this partition.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings and options as TOML. Default: actorproc.toml, if it exists."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as commit_interval=500ms; repeatable."),
]

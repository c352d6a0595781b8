"""What commands do alike: read settings, connect to a store, write JSON lines and tables."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import anyio
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Column, Table
from rich.text import Text

from actorproc.cli.visible import visible
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, SettingsError, UsageError
from actorproc.group.locations import missing_processor
from actorproc.output.dataset import partitions_with_state
from actorproc.rows.json_values import to_json
from actorproc.runtime.clock import SYSTEM
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store
from actorproc.stores import open_store

T = TypeVar("T")

_BLOCK = 200  # rows of a table whose columns are fitted together

_LOOK_AGAIN = 0.5  # seconds

_ONE_LINE: Any = {"no_wrap": True, "overflow": "ellipsis"}


class _Console(Console):
    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **how)

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704


# Whoever reads a pipe or a file wants whole lines.
console = _Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """`name=value` texts as a dictionary.

    Raises:
        SettingsError: one has no name or no '='.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{option} {text!r}: write {option} name=value")
        found[name.strip()] = value
    return found


def load_settings(config: Path | None, given: Sequence[str] | None) -> Settings:
    """Settings from `--set`, the environment and the file, in this order of precedence."""
    return Settings.load_named(config, pairs("--set", given))


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on an event loop of its own.

    Raises:
        ActorprocError: a task or callback of the user's has called `sys.exit`, for which asyncio lets everything go.
    """
    try:
        return anyio.run(work)
    except SystemExit as stray:
        raise ActorprocError(
            f"something that runs beside the handler called sys.exit({stray.code!r}), and that ended everything: a task, a "
            "callback. Raise another exception there. What is committed stays; start again to go on"
        ) from stray


@asynccontextmanager
async def opened_processor(
    name: str, container: str, config: Path | None, given: Sequence[str] | None, wait: float = 0.0
) -> AsyncIterator[tuple[Store, ProcessorLayout, Settings]]:
    """The store and layout of a processor that has run there.

    Args:
        wait: for so many seconds for its first run to begin.

    Raises:
        UsageError: it never has; names those that have.
    """
    layout, settings = ProcessorLayout(name), load_settings(config, given)
    async with open_store(container, settings) as store:
        give_up = SYSTEM.monotonic() + wait
        while (problem := await missing_processor(store, name)) is not None:
            if SYSTEM.monotonic() >= give_up:
                raise UsageError(problem)
            await SYSTEM.sleep(_LOOK_AGAIN)
        yield store, layout, settings


async def chosen_partitions(store: Store, layout: ProcessorLayout, partition: str | None) -> list[str]:
    """All partitions with state, or the one that is asked for.

    Raises:
        UsageError: there is no such partition; names those that there are.
    """
    partitions = sorted(await partitions_with_state(store, layout), key=natural)
    if partition is None:
        return partitions
    if partition not in partitions:
        raise UsageError(f"no partition {partition!r}; there are: {', '.join(partitions) or 'none yet'}")
    return [partition]


def shown_settings(given: Iterable[str]) -> list[str]:
    """Of those given with `--set`, what another command needs to find the store; no secrets."""
    wanted = [setting for setting in given if setting.startswith("s3_") and "_key" not in setting.partition("=")[0]]
    return [part for setting in wanted for part in ("--set", setting)]


def counted(number: int, what: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def print_json(document: object) -> None:
    """One JSON line on stdout."""
    sys.stdout.write(to_json(document).decode() + "\n")


async def print_table(
    columns: Sequence[str], rows: AsyncIterator[Sequence[object]], *, empty: str = "", cut: Collection[str] = ()
) -> None:
    """Print a table of any length, in blocks that each fit their columns.

    Args:
        empty: what to say in its place where there are no rows.
        cut: columns that are cut where the terminal is too narrow, the widest first; the others stay whole.
    """
    block: list[Sequence[object]] = []
    some = False
    async for row in rows:
        some = True
        block.append(row)
        if len(block) == _BLOCK:
            _print_block(columns, block, cut)
            block.clear()
    if block:
        _print_block(columns, block, cut)
    elif not some and empty:
        console.print(empty, markup=False)


def _print_block(columns: Sequence[str], rows: Sequence[Sequence[object]], cut: Collection[str]) -> None:
    # Of columns that may not wrap Rich takes only once the others are at nothing; these are cut, not wrapped, all the same.
    heads = (Column(Text(column, **_ONE_LINE), no_wrap=column not in cut) for column in columns)
    table = Table(*heads, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(text(_line(shown(cell)), justify=_side(cell), **_ONE_LINE) for cell in row))
    console.print(table)


def text(given: str, style: str = "", **how: Any) -> Text:
    """What others may have written, for the terminal."""
    return Text(visible(given), style, **how)


def _line(cell: str) -> str:
    return " ".join(cell.splitlines())


def _side(cell: object) -> JustifyMethod:
    return "right" if isinstance(cell, (int, float, Decimal)) else "left"


def shown(value: object) -> str:
    """A value in a cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _text_or_hex(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")  # as with --json, and nothing cut
    if isinstance(value, (int, float, date, time, Decimal)):
        return str(value)
    return to_json(value).decode()


def _text_or_hex(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex(" ")


def utc(seconds: float | None) -> str | None:
    """Seconds since 1970 as ISO 8601 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

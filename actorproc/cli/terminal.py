"""Prints the answers of commands: lines, tables and JSON on stdout, errors on stderr."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from actorproc.cli.streams import escaped, escaped_line, json_escaped
from actorproc.rows.json_values import to_json

_BLOCK = 200  # rows of a table whose columns are fitted together
_LEAST = 4  # characters that remain of a column that is cut
_LONGEST = 10_000  # characters of a cell that is not to be cut; to measure a MiB takes most of a second
_SIDES = 3  # characters between columns

Cells = Sequence[object]


class SafeConsole(Console):
    """Escapes control characters, wherever in a table or a line they stand, and leaves names of emoji as they are.

    It passes on that nobody reads the stream any more.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, markup=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(escaped(each) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704


# Programs that read a pipe or a file want whole lines.
console = SafeConsole(width=None if sys.stdout.isatty() else 1000)


def print_line(line: str, style: str = "") -> None:
    """One line on stdout, never wrapped, without markup."""
    if style:
        console.print(text(line, style), soft_wrap=True)
    else:
        console.file.write(f"{escaped_line(line)}\n")  # Rich takes a second for a MiB


def print_text(lines: str) -> None:
    """Text of several lines on stdout, never wrapped, without markup."""
    console.file.write(f"{escaped(lines)}\n")


def print_json(document: object) -> None:
    """One JSON line on stdout. Characters that could act on a terminal are escaped, which JSON may do to any."""
    sys.stdout.write(json_escaped(to_json(document).decode()) + "\n")


async def print_table(
    columns: Sequence[str], rows: AsyncIterator[Cells], *, empty: str = "", cut: Collection[str] = ()
) -> int:
    """Print a table of any length, in blocks of rows whose columns are fitted together. Returns the number of rows.

    Args:
        empty: printed instead of a table without rows.
        cut: columns that are cut if the terminal is too narrow, the widest first. Other columns stay whole.
    """
    block: list[Cells] = []
    count = 0
    async for row in rows:
        count += 1
        block.append(row)
        if len(block) == _BLOCK:
            _print_block(columns, block, cut)
            block.clear()
    if block:
        _print_block(columns, block, cut)
    elif not count and empty:
        print_line(empty)
    return count


async def rows_of(rows: Iterable[Cells]) -> AsyncIterator[Cells]:
    """Rows for `print_table` that are at hand."""
    for row in rows:
        yield row


def _print_block(columns: Sequence[str], rows: Sequence[Cells], cut: Collection[str]) -> None:
    # More than a cell may have room for, before it is measured. A character may take no room.
    may_cut = [column in cut for column in columns]
    most = [4 * console.width if cut_here else _LONGEST for cut_here in may_cut]
    texts = [[_cell(as_text(value), longest) for value, longest in zip(row, most, strict=True)] for row in rows]
    columns = [_cell(column, _LONGEST) for column in columns]
    widths = [max(map(_width, column)) for column in zip(columns, *texts, strict=True)]
    _fit(widths, may_cut, console.width)
    numeric = [all(cell is None or _is_number(cell) for cell in column) for column in zip(*rows, strict=True)]
    console.print(Text(_line(columns, widths, numeric), "bold"), soft_wrap=True)
    console.print(f" {_drawn('─', '-') * (sum(widths) + _SIDES * (len(widths) - 1))}", soft_wrap=True)
    console.file.write("".join(f"{_line(row, widths, numeric)}\n" for row in texts))


def _fit(widths: list[int], may_cut: Sequence[bool], width: int) -> None:
    """Make the widest columns that may be cut as narrow as needed."""
    over = sum(widths) + _SIDES * (len(widths) - 1) + 2 - width
    while over > 0 and (narrower := [i for i, cut in enumerate(may_cut) if cut and widths[i] > _LEAST]):
        widest = max(narrower, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (_padded(*cell) for cell in zip(cells, widths, numeric, strict=True))
    return f" {(' ' * _SIDES).join(padded)}".rstrip()


def _padded(cell: str, width: int, right: bool) -> str:
    size = _width(cell)
    if size > width:
        return set_cell_size(cell, width - 1) + _drawn("…", "~")
    return " " * (width - size) + cell if right else cell + " " * (width - size)


def _drawn(sign: str, plain: str) -> str:
    """`sign`, or `plain` where the encoding of stdout may lack it."""
    return sign if str(sys.stdout.encoding).lower().startswith("utf") else plain


def _cell(value: str, longest: int) -> str:
    """The value on one line, escaped, and cut if it is longer."""
    rest = _drawn("…", "~") if len(value) > longest else ""
    value = value[:longest]
    return (value if value.isprintable() else " ".join(escaped(value).splitlines())) + rest


def _width(cell: str) -> int:
    return len(cell) if cell.isascii() else cell_len(cell)


def _is_number(cell: object) -> bool:
    return isinstance(cell, (int, float, Decimal)) and not isinstance(cell, bool)


def text(given: str, style: str = "") -> Text:
    """Text from data on one line, escaped for the terminal."""
    return Text(escaped_line(given), style)


def as_text(value: object) -> str:
    """A value in a cell of a table, not escaped."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _text_or_hex(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")  # the same text as in JSON
    if isinstance(value, (int, float, date, time, Decimal)):
        return str(value)
    return to_json(value).decode()


def _text_or_hex(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex(" ")


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sized(count: float) -> str:
    """Bytes with a unit: `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def passed(seconds: float) -> str:
    """A time that has passed: `3d 4h`, `2h 5m`, `1m 12s`."""
    days, rest = divmod(max(0, int(seconds)), 86400)
    hours, rest = divmod(rest, 3600)
    return f"{days}d {hours}h" if days else f"{hours}h {rest // 60}m" if hours else f"{rest // 60}m {rest % 60}s"


def utc(seconds: float | None) -> str | None:
    """Seconds since 1970 as ISO 8601 in UTC."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # of a stored document, which may say anything
        return f"{seconds:g} s since 1970"

"""Text from streams, buckets and registries on the operator's terminal: it takes neither over, nor much time."""

from __future__ import annotations

import re
import time
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from actorproc.cli import terminal
from actorproc.cli.streams import escaped, warn
from actorproc.cli.terminal import SafeConsole, print_line, print_table, rows_of

ATTACKS = [
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x9b2J", "\x9d0;x\x9c", "\x1bP+q\x1b\\", "\r hidden",
    "\b\b", "\x07", "\x0e", "\x00", "\x7f", "\u202e", "\u2066", "\u200f", "\u061c", "\x85", "\x1bc",
    "\u2028", "\u2029",
]  # fmt: skip
BAD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """The text that a terminal of 80 columns gets."""
    stream = StringIO()
    monkeypatch.setattr(terminal, "console", SafeConsole(width=80, file=stream))
    return stream


def table(cells: list[list[object]], columns: list[str], **how: Any) -> None:
    async def work() -> None:
        await print_table(columns, rows_of(cells), **how)

    anyio.run(work)


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
def test_no_attack_reaches_the_terminal(attack: str, shown: StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    table([[attack, {"a": attack}, attack.encode()]], [f"head{attack}", "b", "c"], cut=("b",))
    print_line(f"line {attack}")
    print_line(f"line {attack}", "bold")
    grid = Table(f"head {attack}", title=attack, caption=attack)
    grid.add_row(f"cell {attack}")
    grid.add_row(Text(f"text {attack}"))
    terminal.console.print(grid)
    terminal.console.print(Text(attack), f"{attack}")
    warn(f"warning {attack}")
    assert not BAD.search(shown.getvalue() + capsys.readouterr().err)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\u2029", "\x85", "\x0b", "\x0c"], ids=ascii)
def test_text_of_a_record_cannot_look_like_another_line(
    end: str, shown: StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    print_line(f"line{end}1 dead letter appended")
    print_line(f"line{end}1 dead letter appended", "bold")
    warn(f"line{end}1 dead letter appended")
    terminal.console.print(terminal.text(f"line{end}1 dead letter appended"), soft_wrap=True)
    assert [line[:4] for line in (shown.getvalue() + capsys.readouterr().err).splitlines()] == ["line"] * 4


@pytest.mark.parametrize("text", ["[bold]x[/bold]", "[/x]", "[link=http://evil]x[/link]", ":smile:", "[red", "\\[x]"])
def test_markup_and_emoji_names_in_data_are_shown_as_they_are(text: str, shown: StringIO) -> None:
    grid = Table("head", title=text)
    grid.add_row(text)
    terminal.console.print(grid)
    terminal.console.print(text)
    print_line(text)
    table([[text]], ["a"])
    assert shown.getvalue().count(text) == 5


@pytest.mark.parametrize("sign", ["x", "é", "漢", "\u0301", "😀", "\x1b", "\n", "\udc80", "👩\u200d🚀"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_cell_of_many_megabytes_is_cut_before_it_is_measured(sign: str, cut: bool, shown: StringIO) -> None:
    cell = sign * (8 * 2**20 // len(sign))
    began = time.process_time()
    table([["1", cell], ["2", "short"]], ["id", "value"], cut=("value",) if cut else ())
    assert time.process_time() - began < 1.5
    line = next(line for line in shown.getvalue().splitlines() if line.startswith(" 1"))
    assert line.endswith(("…", "~"))
    assert len(shown.getvalue()) < 400_000


def test_a_line_of_many_megabytes_is_printed_whole_and_at_once(shown: StringIO) -> None:
    text = "é" * (8 * 2**20)
    began = time.process_time()
    print_line(text)
    assert time.process_time() - began < 1.5
    assert shown.getvalue() == f"{text}\n"


def test_wide_characters_keep_columns_aligned(shown: StringIO) -> None:
    table([["漢字", "a"], ["x" * 4, "b"], ["é\u0301", "c"]], ["text", "id"])
    lines = shown.getvalue().splitlines()[2:]
    assert len({cell_len(line[: line.rindex(sign)]) for line, sign in zip(lines, "abc", strict=True)}) == 1


def test_commands_print_only_by_ways_that_escape() -> None:
    """A new `typer.echo` of a name from a bucket would be unescaped."""
    folder = Path(terminal.__file__).parent
    ways = re.compile(r"\b(typer\.echo|click\.echo|sys\.std(out|err)\.write)\(|(?<![.\w])(?<!def )(print|Console)\(")
    allowed = {"streams.py": 2, "terminal.py": 1, "__init__.py": 3, "workers.py": 1}
    found = {file.name: len(ways.findall(file.read_text())) for file in folder.glob("*.py")}
    assert {name: count for name, count in found.items() if count} == allowed
    assert escaped("\x1b") == "\\x1b"

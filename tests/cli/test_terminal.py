"""Tables on narrow terminals, and text from records that must not act on a terminal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from actorproc import JsonRows, PartitionContext, Processor, Producer, Record, RecordHandler
from actorproc.cli import terminal
from tests.cli.conftest import QUICK, Run
from tests.cli.reading import LAYOUT, lines


def narrow(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(terminal, "console", terminal.SafeConsole(width=width))


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_narrow_terminal_cuts_values_of_dead_letters_but_not_ids(
    run: Run, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    for file in (tmp_path / "state" / LAYOUT.dead_letters).rglob("*.jsonl"):
        wide = [letter | {"value": "x" * 200} for letter in lines(file.read_text())]
        file.write_bytes(b"".join(orjson.dumps(letter) + b"\n" for letter in wide))
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    narrow(monkeypatch, width)
    shown = run("dead-letters", "list", *place).stdout.splitlines()
    assert max(map(len, shown)) <= width
    assert shown.pop() == "20 dead letters: KeyError (20)"
    rows = [line.split() for line in shown if "KeyError" in line]
    assert [row[0] for row in rows] == [f"{letter['partition']}:{letter['sequence']}" for letter in letters]
    assert {tuple(row[2:4]) for row in rows} == {("KeyError", "'delay'")}
    assert [row[4] for row in rows] == [letter["key"] for letter in letters]


def test_a_narrow_terminal_cuts_columns_but_not_the_position_of_a_row(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wide() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send(orjson.dumps({"text": "a\nb" * 50, "more": "x" * 90}))
        settings = {"options": {"output_schema": "text string, more string"}, **QUICK}
        places: dict[str, Any] = {"source": str(tmp_path / "events"), "container": str(tmp_path / "state")}
        await Processor(JsonRows, name="Delays", **places, **settings).run(until_end=True)

    anyio.run(wide)
    narrow(monkeypatch, 80)
    shown = run("output", "--name", "Delays", "--container", tmp_path / "state").stdout.splitlines()
    assert max(map(len, shown)) <= 80
    (row,) = (line.split() for line in shown if "xx" in line)
    assert row[:4] == ["0", "0", "a", "ba"]
    assert row[-1].endswith("…")


def test_a_header_with_a_long_name_or_line_break_takes_one_line(run: Run, tmp_path: Path) -> None:
    async def prepare() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send(b"none", headers=[("x" * 1000, b"1"), ("a\r\nkey", b"2")])
        await Processor(
            JsonRows, name="Delays", source=str(tmp_path / "events"), container=str(tmp_path / "state"),
            options={"output_schema": "tail string"}, dead_letter_limit=1, **QUICK,
        ).run(until_end=True)  # fmt: skip

    anyio.run(prepare)
    shown = run(
        "dead-letters", "show", "0:0", "--name", "Delays", "--container", tmp_path / "state"
    ).stdout.splitlines()
    assert f"header {'x' * 1000}  1" in shown
    assert [line.split() for line in shown if "key" in line] == [["key", "-"], ["header", "a\\r\\nkey", "2"]]
    assert len(next(line for line in shown if line.startswith("key"))) < 40


class RepeatsWhatItCannotRead(RecordHandler):
    output_schema = "tail string"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        row = record.json()
        if "tail" not in row:
            raise ValueError(f"no tail in {row['text']}")
        return dict(row)


def test_control_characters_of_a_record_are_escaped(run: Run, tmp_path: Path) -> None:
    acting = "\x1b[2Jgone\x07 \x9b31m\x1b]0;title\x07\u202e"
    shown = "\\x1b[2Jgone\\x07 \\x9b31m\\x1b]0;title\\x07\\u202e"

    async def prepare() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send_many([orjson.dumps({"tail": acting}), orjson.dumps({"text": acting})])
        await Processor(
            RepeatsWhatItCannotRead, name="Delays", source=str(tmp_path / "events"), container=str(tmp_path / "state"),
            dead_letter_limit=1, **QUICK,
        ).run(until_end=True)  # fmt: skip

    anyio.run(prepare)
    there = ["--name", "Delays", "--container", tmp_path / "state"]
    for command in (["output"], ["dead-letters", "list"], ["dead-letters", "show", "0:1"]):
        printed = run(*command, *there).stdout
        assert shown in printed, command
        assert not any(character in printed for character in "\x1b\x07\x9b\u202e"), command
    for command in (["output"], ["dead-letters", "list"]):
        printed = run(*command, *there, "--json").stdout
        assert "\\u009b31m" in printed, command
        assert [orjson.loads(line) for line in printed.splitlines()]
        assert not any(character in printed for character in "\x1b\x07\x9b\u202e"), command
    wrong = run("status", "--name", acting, "--container", tmp_path / "state")
    assert "\\x1b[2Jgone" in wrong.stderr
    assert "\x1b" not in wrong.stderr


@pytest.mark.parametrize("way", ["keep", "skip"])
def test_control_characters_of_a_bad_line_are_escaped(run: Run, tmp_path: Path, way: str) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"a": 1}\n\x1b[2J{"\x9b31m\u202e": 2}\n')
    given = ["--log", tmp_path / "events", "--partitions", 1, "--key", "\x9b31ma", "--on-bad-line", way, lines]
    written = run("produce", *given)
    assert written.exit_code == 0, written.output
    assert "line 2" in written.stderr
    assert not any(character in written.output for character in "\x1b\x07\x9b\u202e")


def test_control_characters_of_a_traceback_are_escaped(run: Run, tmp_path: Path) -> None:
    wrong = run("--debug", "status", "--name", "\x1b[2J\x9b31m", "--container", tmp_path)
    assert "Traceback" in wrong.stderr
    assert not any(character in wrong.output for character in "\x1b\x9b")


EVIL = "a\r\n2 dead letters: b\u2028c\x1b[2J"


class Evil(RecordHandler):
    """Puts text of the record into everything that a command prints of a letter."""

    output_schema = "tail string"

    def process_record(self, record: Record, ctx: PartitionContext) -> None:
        ctx.dead_letter(record, EVIL, kind=EVIL)


def test_no_command_prints_line_ends_of_a_record_outside_its_value(run: Run, tmp_path: Path) -> None:
    async def prepare() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send_many([b"x"] * 2, keys=[EVIL.encode()] * 2, headers=[[(EVIL, EVIL.encode())]] * 2)
        await Processor(
            Evil, name="Delays", source=str(tmp_path / "events"), container=str(tmp_path / "state"),
            dead_letter_limit=1, **QUICK,
        ).run(until_end=True)  # fmt: skip

    anyio.run(prepare)
    there = ["--name", "Delays", "--container", tmp_path / "state"]
    for command in (
        ["dead-letters", "list"], ["dead-letters", "list", "--kind", "none"], ["dead-letters", "show", "0:1"],
        ["dead-letters", "replay", "--kind", "none"], ["trace", "0:1"], ["explain", "0"], ["status"],
    ):  # fmt: skip
        printed = run(*command, *there).output
        assert not any(line.lstrip().startswith("2 dead letters: b") for line in printed.splitlines()), command
        assert not any(character in printed for character in "\r\u2028\x1b"), command
    assert "2 dead letters: a\\r\\n2 dead letters: b\\u2028c\\x1b[2J (2)" in run("dead-letters", "list", *there).stdout

"""Help texts fit the terminal, and their examples can be copied."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from actorproc.cli import app
from actorproc.stores import open_store
from tests.cli.conftest import Run

ECHO = """
actorproc() { for word in actorproc "$@"; do printf '%s\\0' "$word"; done; printf '\\n'; }
tail() { :; }
set -e
cd "$(mktemp -d)"
"""


def commands(group: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, [*path, name])


ALL = list(commands(typer.main.get_command(app), []))


def examples(text: str) -> list[str]:
    """The commands in a help text, each with the lines that continue it."""
    return [found[0] for found in re.finditer(r"^  actorproc (?:.*\\\n)*.*", text, re.MULTILINE)]


def shown(run: Run, path: list[str], width: int) -> str:
    return str(run(*path, "--help", env={"COLUMNS": str(width)}).stdout)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_of_any_help_is_wider_than_the_terminal(run: Run, width: int) -> None:
    for path, _ in ALL:
        lines = shown(run, path, width).splitlines()
        assert [line for line in lines if len(line) > width] == [], path
        assert "\u2026" not in "".join(lines)


def test_every_help_teaches_by_an_example(run: Run) -> None:
    for path, _ in ALL:
        assert any(f"actorproc {' '.join(path)}" in example for example in examples(shown(run, path, 80))), path


@pytest.mark.parametrize("width", [60, 80])
def test_examples_copied_from_a_narrow_terminal_run_as_they_are(run: Run, width: int) -> None:
    """bash sees the words of the original example, whichever lines it is broken into."""
    for path, command in ALL:
        copied = examples(shown(run, path, width))
        script = ECHO + "\n".join(example.partition(" > ")[0].partition(" | ")[0] for example in copied)
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        words = [line.split("\0")[:-1] for line in ran.splitlines()]
        originals = re.findall(r"^ +(actorproc .*)", command.help or "", re.MULTILINE)
        wanted = [shlex.split(line.partition(" > ")[0].partition(" | ")[0], comments=True) for line in originals]
        assert words == wanted, path


def test_urls_in_the_help_are_well_formed(run: Run) -> None:
    urls = {url for path, _ in ALL for url in re.findall(r"s3://[\w/.-]+", shown(run, path, 120))}
    assert urls
    for url in urls:
        open_store(url)


def test_flags_have_no_value_in_the_help(run: Run) -> None:
    text = shown(run, ["dead-letters", "purge"], 80)
    assert re.search(r"^  -y, --yes +Do not ask", text, re.MULTILINE)
    assert re.search(r"^  --partition P +Only", text, re.MULTILINE)


def test_the_root_help_names_the_exit_codes(run: Run) -> None:
    assert "Exit codes: 0 done; 1 failed, or not all done; 2 wrong use." in run("--help").stdout

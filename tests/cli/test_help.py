"""Help texts fit the terminal and teach by examples."""

from __future__ import annotations

import re
from functools import cache

import pytest
from typer.testing import CliRunner

from actorproc.cli import app
from actorproc.stores import open_store
from tests.cli.conftest import Run, every_command

ALL = every_command()


@cache
def shown(width: int, *path: str) -> str:
    return CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(width)}).stdout


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_no_line_of_any_help_is_wider_than_the_terminal(width: int) -> None:
    for path, _ in ALL:
        lines = shown(width, *path).splitlines()
        assert [line for line in lines if len(line) > width] == [], path
        assert "\u2026" not in "".join(lines)


def test_every_help_teaches_by_an_example() -> None:
    for path, _ in ALL:
        assert f"\n    actorproc {' '.join(path)}" in shown(80, *path), path


def test_urls_in_the_help_are_well_formed() -> None:
    urls = {url for path, _ in ALL for url in re.findall(r"s3://[\w/.-]+", shown(80, *path))}
    assert urls
    for url in urls:
        open_store(url)


def test_flags_have_no_value_in_the_help() -> None:
    text = shown(80, "dead-letters", "purge")
    assert re.search(r"^  -y, --yes +Do not ask", text, re.MULTILINE)
    assert re.search(r"^  --partition P +Only", text, re.MULTILINE)


def test_the_root_help_names_the_exit_codes(run: Run) -> None:
    assert "Exit codes: 0 done; 1 failed, or not all done; 2 wrong use." in run("--help").stdout

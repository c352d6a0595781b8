"""Mistyped names and values on the command line: one line of error, with the name that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import APP, Run

SERVE = ["serve", "flights_app:Delays", "--source", "events", "--container", "state"]
PLACE = ["--name", "Delays", "--container", "state"]
WIDE = {"COLUMNS": "300"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights_app.py").write_text(APP)
    return tmp_path


def refused(run: Run, *arguments: str, says: str) -> None:
    result = run(*arguments, env=WIDE)
    assert result.stderr.startswith("error: ")
    assert says in result.stderr, result.output
    assert result.stderr.count("\n") == 1
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("name", "name = 'x': there is no such setting"),
        ("config", "config = 'x': there is no such setting"),
        ("options", "options = 'x': there is no such setting"),
        ("handler", "handler = 'x': there is no such setting"),
        ("self", "self = 'x': there is no such setting"),
        ("clock", "clock = 'x': there is no such setting"),
        ("nudges", "nudges = 'x': there is no such setting"),
        ("settings", "settings = 'x': there is no such setting"),
        (
            "minutes",
            "minutes = 'x': there is no such setting. (Source, container and name are given on the command line",
        ),
    ],
)
def test_an_argument_of_the_processors_is_no_setting(run: Run, name: str, says: str, workers: list[str]) -> None:
    refused(run, *SERVE, *workers, "--set", f"{name}=x", says=says)


@pytest.mark.parametrize("name", ["config", "cls", "self", "_env_file", "__pydantic_self__"])
def test_python_only_arguments_are_no_settings_of_commands(run: Run, name: str) -> None:
    result = run("status", *PLACE, "--set", f"{name}=x")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {name}")
    assert "no such setting" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*SERVE, "--workers", "0"], "--workers: '0': write a whole number, 1 or more"),
        ([*SERVE, "--workers", "two"], "--workers: 'two': write a whole number, 1 or more"),
        (["output", *PLACE, "--limit", "x"], "--limit: 'x': write a whole number, 1 or more"),
        (["produce", "--log", "events", "--rate", "0", "f"], "--rate: '0': write a number above 0"),
        (["demo", "--events", "3"], "--events: '3': write a whole number, 5000 to 336776"),
        (["produce", "--log", "e", "--on-bad-line", "no", "f"], "--on-bad-line: 'no': write one of fail, keep, skip"),
        (["--log-level", "loud", "status", *PLACE], "'loud': write one of debug, info, warning, error"),
        (["status", "--name", "Delays"], "missing --container: give it, or set ACTORPROC_CONTAINER"),
        (["status", *PLACE, "--jsn"], "no option --jsn; did you mean --json?"),
        (["status", *PLACE, "--source"], "--source needs a value"),
        (["status", *PLACE, "more"], "unexpected argument 'more'"),
        (["statu"], "no command 'statu' in actorproc; did you mean status?"),
        (["dead-letters", "x"], "no command 'x' in actorproc dead-letters; there are: "),
    ],
)
def test_a_usage_error_is_one_line_of_ours(run: Run, arguments: list[str], says: str) -> None:
    refused(run, *arguments, says=says)

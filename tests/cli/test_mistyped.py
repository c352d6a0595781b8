"""Names and values that are mistyped on the command line, in it or beside it: said with the value, and with what may be meant."""

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
    assert says in result.stderr, result.output
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
def test_a_name_that_means_something_to_python_alone_is_no_setting_of_any_command(run: Run, name: str) -> None:
    result = run("status", *PLACE, "--set", f"{name}=x")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {name}")
    assert "no such setting" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([*SERVE, "--workers", "0"], "0"),
        ([*SERVE, "--workers", "two"], "'two'"),
        (["output", *PLACE, "--tail", "x"], "'x'"),
        (["produce", "--log", "events", "--rate", "0", "f"], "0"),
        (["dead-letters", "list", *PLACE, "--limit", "0"], "0"),
        (
            ["produce", "--log", "events", "--on-bad-line", "ignore", "f"],
            "'ignore' is not one of 'fail', 'keep', 'skip'",
        ),
        (["--log-level", "loud", "status", *PLACE], "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_shown(run: Run, arguments: list[str], value: str) -> None:
    result = run(*arguments, env=WIDE)
    assert result.exit_code == 2
    said = result.stderr.partition("Invalid value for ")[2]
    assert f": {value}" in said or f": '{value}'" in said, result.stderr
    assert "Value error" not in said

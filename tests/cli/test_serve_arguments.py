"""The arguments of `serve` reach its workers, its query and its processor as they were given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from actorproc.cli.serve_arguments import ServeArguments
from tests.cli.conftest import Run

GIVEN = {
    "handler": "flights_app:Delays", "source": "my log", "container": "state", "source_option": ["a=b=c", "d="],
    "sink": ["db=sqlite:x.db"], "sink_option": ["db.table=t"],
    "name": "N", "host": "h", "workers": "2", "start": "2013-01-01T00:00Z", "start_from": "kafka-group:x y",
    "until_end": True, "option": ['list=["a", "b"]', "empty="], "spark": "app:f", "spark_checkpoint": "spark/c",
    "http": "[::1]:8600", "hooks": "app:Hooks", "config": "my.toml", "settings": ["commit_interval=1s", "decode='"],
}  # fmt: skip
"""Every argument, with a value that is not its default."""

FLAGS = {"until_end": "--until-end", "settings": "--set"}
OF_THE_PARENT = {"workers", "spark", "spark_checkpoint"}


def words(given: dict[str, Any]) -> list[str]:
    found = []
    for name, value in given.items():
        flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
        if value is True:
            found.append(flag)
        elif name != "handler":
            found += [part for one in (value if isinstance(value, list) else [value]) for part in (flag, one)]
    return [*found, given["handler"]]


@pytest.fixture
def parsed(run: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The `ServeArguments` of a command line."""
    seen: list[ServeArguments] = []
    monkeypatch.setattr("actorproc.cli.serve.run", seen.append)

    def parse(*line: str) -> ServeArguments:
        result = run(*line)
        assert result.exit_code == 0, result.stderr
        return seen[-1]

    return parse


def values(arguments: ServeArguments) -> dict[str, Any]:
    return {field.name: getattr(arguments, field.name) for field in fields(arguments) if field.name != "ctx"}


def test_every_argument_reaches_a_worker(parsed: Any) -> None:
    assert GIVEN.keys() == {field.name for field in fields(ServeArguments)} - {"ctx"}, "a new argument needs a value"
    given = parsed("serve", *words(GIVEN))
    got = parsed(*given.worker("h-1", ["--http", "[::1]:8601"]))
    changed = {"host": "h-1", "http": "[::1]:8601", **dict.fromkeys(OF_THE_PARENT)}
    assert values(got) == {**values(given), **changed}


def test_a_worker_gets_no_argument_that_was_not_given(parsed: Any) -> None:
    line = ["serve", "a:B", "--source", "s", "--container", "c"]
    assert sorted(parsed(*line).worker("h", [])) == sorted([*line, "--host", "h"])


def test_a_worker_takes_variables_from_its_environment(parsed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORPROC_SOURCE", "secret@s")
    monkeypatch.setenv("ACTORPROC_CONTAINER", "c")
    monkeypatch.setenv("ACTORPROC_HOST", "of-the-parent")
    worker = parsed("serve", "a:B").worker("h-0", [])
    assert worker == ["serve", "a:B", "--host", "h-0"]
    assert values(parsed(*worker)) == {**values(parsed("serve", "a:B")), "host": "h-0"}


def test_options_before_the_command_reach_workers_and_query(parsed: Any) -> None:
    root = ["--debug", "--log-level", "warning", "--log-format", "json"]
    arguments = parsed(*root, "serve", "a:B", "--source", "s", "--container", "c")
    assert arguments.root() == root
    assert arguments.worker("h", [])[: len(root)] == root


def test_a_setting_with_the_name_of_an_argument_is_refused(run: Run) -> None:
    for name in ("start", "name", "handler", "settings", "config", "hooks"):
        result = run("serve", "actorproc.handlers:Capture", "--source", "s", "--container", "c", "--set", f"{name}=x")
        assert result.exit_code == 2
        assert f"{name} = 'x': there is no such setting" in result.stderr
        assert "Traceback" not in result.stderr

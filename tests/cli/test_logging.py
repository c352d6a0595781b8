"""Logs of the command line: lines for people on a terminal, JSON otherwise."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from actorproc.cli import logging as cli_logging
from actorproc.cli.loading import load_handler
from actorproc.runtime.logger import get_logger, set_up_now
from tests.cli.conftest import Run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    handlers = logging.getLogger().handlers[:]
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
    logging.captureWarnings(capture=False)


def set_up_logging(level: str, log_format: str | None = None) -> None:
    cli_logging.set_up_logging(level, log_format)
    set_up_now()


def only_line(stderr: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (line,) = stderr.readouterr().err.splitlines()
    return dict(orjson.loads(line))


def test_an_event_is_a_json_line_with_a_time_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    structlog.contextvars.clear_contextvars()
    structlog.get_logger().bind(partition="3").info("partition.opened", numbers={1: object})
    line = only_line(capsys)
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() == timedelta(0)
    assert line == {"event": "partition.opened", "partition": "3", "level": "info", "numbers": {"1": str(object)}}


def test_structlog_is_configured_before_the_first_event(capsys: pytest.CaptureFixture[str]) -> None:
    cli_logging.set_up_logging("info")
    assert not structlog.is_configured()
    get_logger("actorproc.x").info("partition.opened")
    assert only_line(capsys)["event"] == "partition.opened"


def test_structlog_is_configured_before_the_first_event_of_logging(capsys: pytest.CaptureFixture[str]) -> None:
    cli_logging.set_up_logging("info")
    logging.getLogger("boto").warning("slow")
    assert only_line(capsys)["event"] == "slow"


def test_structlog_is_configured_before_the_code_of_others_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs_at_once.py").write_text("import structlog; structlog.get_logger().info('theirs'); Handler = 1")
    monkeypatch.chdir(tmp_path)
    cli_logging.set_up_logging("info")
    assert load_handler("logs_at_once:Handler") == 1
    assert only_line(capsys)["event"] == "theirs"


class Writes(io.StringIO):
    """The writes one by one, as in an unbuffered stream."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return len(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Writes()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging("info")
    structlog.get_logger().info("partition.opened")
    logging.getLogger("botocore.x").warning("slow")
    assert [text[-2:] for text in stream.written] == ["}\n", "}\n"]


def test_a_traceback_is_a_field_of_the_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    try:
        raise ValueError("poison")
    except ValueError:
        structlog.get_logger().exception("partition.failed")
    assert only_line(capsys)["exception"].endswith("ValueError: poison")


def test_events_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("warning")
    structlog.get_logger().info("partition.opened")
    assert capsys.readouterr().err == ""


def test_warnings_of_libraries_become_events(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    set_up_logging("info")
    logging.getLogger("botocore.x").info("chatter")
    logging.getLogger("botocore.x").warning("slow %s", "reply")
    line = only_line(capsys)
    assert (line["event"], line["logger"], line["level"]) == ("slow reply", "botocore.x", "warning")


def test_a_terminal_gets_a_readable_line_and_the_traceback_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging("info")
    try:
        raise ValueError("poison")
    except ValueError:
        structlog.get_logger().exception("partition.failed", partition="3")
    text = stream.getvalue()
    assert "partition.failed" in text
    assert "\nValueError: poison" in text
    assert not text.startswith("{")


def test_control_characters_in_an_error_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging("info")
    try:
        raise ValueError("poison \x1b[2J\x07")
    except ValueError as error:
        structlog.get_logger().exception("partition.failed", error=str(error))
    text = stream.getvalue()
    assert text.count("poison \\x1b[2J\\x07") == 2
    assert "\x1b[2J" not in text
    assert "\x07" not in text


def test_values_that_json_cannot_hold_are_logged_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    set_up_logging("info")
    structlog.get_logger().info("seen", many=2**70, half="\ud83d", key={(1, 2): 3}, mute=Mute(), plain="x")
    line = only_line(capsys)
    assert line["plain"] == "x"
    assert line["many"] == str(2**70)
    assert line["half"] == "\\ud83d"
    assert line["key"] == "{(1, 2): 3}"


def test_event_level_and_time_come_first_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    structlog.contextvars.bind_contextvars(host="a")
    structlog.get_logger().bind(partition="3").info("partition.opened", position="7")
    structlog.contextvars.clear_contextvars()
    (line,) = capsys.readouterr().err.splitlines()
    assert list(orjson.loads(line))[:3] == ["event", "level", "timestamp"]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_log_format_is_obeyed_on_a_terminal_and_in_a_file(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    for log_format in ("console", "json"):
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        set_up_logging("info", log_format)
        structlog.get_logger().info("partition.opened")
        assert stream.getvalue().startswith("{") is (log_format == "json")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_obeyed_by_log_lines(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    set_up_logging("info", "console")
    structlog.get_logger().warning("partition.stuck")
    assert ("\x1b[" in stream.getvalue()) is (no_color == "")


@pytest.mark.parametrize("given", [["--log-format", "console"], []])
def test_every_command_obeys_the_log_format(run: Run, tmp_path: Path, given: list[str]) -> None:
    variable = {"ACTORPROC_LOG_FORMAT": "console"} if not given else {}
    place = ["--name", "x", "--container", str(tmp_path)]
    for command in (["status", *place], ["output", *place], ["trim", *place], ["doctor", str(tmp_path)]):
        run(*given, *command, env=variable)
        set_up_now()
        assert logging.getLogger().handlers[-1].formatter is not None
        processors = structlog.get_config()["processors"]
        assert isinstance(processors[-1], structlog.dev.ConsoleRenderer), command

"""What a host program sees of our log: what it asked for, and nothing on its stdout."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from actorproc.logger import get_logger

EMBEDDED = """
import anyio
from actorproc import Processor
from actorproc.handlers import Capture
from actorproc.stores.memory import Memory
from actorproc.store import Store
from actorproc.testing.source import MemorySource

anyio.run(lambda: Processor(Capture, source=MemorySource(2), container=Store(Memory())).run(until_end=True))
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )


def test_without_configuration_a_warning_goes_to_stderr_as_of_any_library_and_the_rest_nowhere(tmp_path: Path) -> None:
    program = "from actorproc.logger import get_logger\nlog = get_logger('actorproc.x').bind(host='a')\n"
    done = run(program + "log.info('x.quiet')\nlog.warning('x.loud', why='100 %s')\n", tmp_path)
    assert (done.stdout, done.stderr) == ("", "x.loud host='a' why='100 %s'\n")


def test_a_program_that_configured_nothing_hears_nothing_of_a_processor_that_is_well(tmp_path: Path) -> None:
    done = run(EMBEDDED, tmp_path)
    assert (done.stdout, done.stderr) == ("", "")


def test_logging_gets_level_name_fields_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert not structlog.is_configured()
    log = get_logger("actorproc.x")
    with caplog.at_level(logging.INFO, "actorproc"):
        try:
            raise ValueError("poison")
        except ValueError:
            log.bind(partition="3").exception("x.failed")
        log.info("x.opened", number=1)
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("actorproc.x", "ERROR", "x.failed partition='3'"),
        ("actorproc.x", "INFO", "x.opened number=1"),
    ]
    assert "ValueError: poison" in caplog.text


def test_an_application_that_configured_structlog_gets_events_its_own_way() -> None:
    log = get_logger("actorproc.x")
    with structlog.testing.capture_logs() as logs:
        log.bind(partition="3").debug("x.opened", number=1)
    assert logs == [{"event": "x.opened", "partition": "3", "number": 1, "log_level": "debug"}]

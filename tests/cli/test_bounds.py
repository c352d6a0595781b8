"""Durations, sizes, numbers and times that would overflow later are refused in one line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from actorproc import Settings
from actorproc.cli.fleet import _time
from actorproc.cli.terminal import utc
from actorproc.config.units import LONGEST, count_of_bytes, duration
from actorproc.errors import SettingsError, UsageError
from actorproc.sources.protocol import parse_time
from tests.cli.conftest import Run

LONG = ["4000000d", "36501d", "1e300", "1e17s", "1e308d", "1e400"]
DURATIONS = [
    name for name, field in Settings.model_fields.items()
    if any(getattr(limit, "le", None) == LONGEST for limit in field.metadata)
]  # fmt: skip
PLACE = ["--name", "Odd", "--container", "state"]


def test_every_setting_that_is_a_duration_is_bounded() -> None:
    assert {"lease_expiration_interval", "max_handoff_time", "poll_interval", "commit_interval"} <= set(DURATIONS)
    assert len(DURATIONS) > 20


@pytest.mark.parametrize("given", LONG)
@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_beyond_a_century_is_refused(name: str, given: str) -> None:
    with pytest.raises(SettingsError, match=name) as refused:
        Settings.load(**{name: given})
    assert "\n" not in str(refused.value)
    with pytest.raises(SettingsError, match=name):
        duration(name, given)


@pytest.mark.parametrize("given", ["1e300GB", "9223372036854775808", "1e20", "1e400kB", 2**63])
def test_a_size_beyond_64_bits_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="read_ahead_bytes"):
        Settings.load(read_ahead_bytes=given)
    with pytest.raises(SettingsError, match="target"):
        count_of_bytes("target", given)


@pytest.mark.parametrize(
    "time",
    ["0000-01-01T00:00Z", "99999-01-01T00:00Z", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "1e400", "", "٢٠٢٦",
     "2026-01-01T00:00", "2026-02-30T00:00Z", "2026-01-01T25:00Z", "2026-01-01T00:00+99:00", "\0", "x" * 10**6],
)  # fmt: skip
def test_a_time_that_no_calendar_has_is_refused(time: str) -> None:
    with pytest.raises(UsageError, match="a time with its zone") as refused:
        parse_time("--before", time)
    assert len(str(refused.value)) < 300


def test_a_time_at_the_end_of_the_calendar_is_taken() -> None:
    assert parse_time("--before", "9999-12-31T23:59Z") == datetime(9999, 12, 31, 23, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["produce", "--log", "e", "f", "--rate", given] for given in ("1e400", "inf", "nan", "1e308", "1e-320", "0")),
        *(["cost", "--rate", given] for given in ("1e400", "nan", "1e300", "-1")),
        *(["cost", "--linger", given] for given in ("1e400", "1e-320", "1e300")),
        *(["cost", "--hosts", given] for given in ("9" * 5000, "1e3", "-1", str(2**64), "٣")),
        *(["top", *PLACE, "--every", given] for given in ("1e400", "1e300", "1e-320", "nan")),
        *(["output", *PLACE, "--limit", given] for given in ("9" * 5000, "1e9")),
        *(["trim", *PLACE, "--older-than", given] for given in (*LONG, "-1", "nan", "inf")),
        ["dead-letters", "purge", *PLACE, "--before", "0000-01-01T00:00Z"],
        ["dead-letters", "purge", *PLACE, "--before", "0001-01-01T00:00+01:00"],
        ["checkpoints", "reset", *PLACE, "--source", "e", "--to", "99999-01-01T00:00Z"],
        ["checkpoints", "reset", *PLACE, "--source", "e", "--to", "1e400"],
        *(["cost", "--set", f"lease_expiration_interval={given}"] for given in LONG),
        *(["cost", "--set", f"read_ahead_bytes={given}"] for given in ("1e300GB", "9" * 5000)),
        *(["cost", "--set", f"max_batch_records={given}"] for given in ("1e300", "9" * 5000)),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)  # fmt: skip
def test_a_number_that_would_overflow_is_wrong_use(arguments: list[str], run: Run) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, (done.output, done.exception)
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("seconds", [1e300, -1e300, 1e17, -1e12, float("inf"), float("nan")])
def test_a_stored_time_that_no_calendar_has_is_shown_as_a_number(seconds: float) -> None:
    assert "since 1970" in str(utc(seconds))
    assert "since 1970" in _time(seconds)

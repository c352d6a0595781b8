"""`actorproc top`, `explain` and `serve --http`."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from actorproc.cli.dashboard import address_of_worker
from tests.cli.conftest import Run
from tests.server.fleet import NAME, FakeFleet


@pytest.fixture
def place(tmp_path: Path) -> list[object]:
    anyio.run(FakeFleet(tmp_path).write)
    return ["--name", NAME, "--container", tmp_path]


def test_top_shows_the_worst_partition_first_with_its_reason(run: Run, place: list[object]) -> None:
    shown = run("top", *place, "--once").stdout
    assert "2 of 2 hosts alive" in shown
    assert "13 ok, 1 retrying, 1 stuck, 1 moving" in shown
    table = shown.partition("verdict")[2]
    assert table.index("stuck for 2 min: PartitionStuck") < table.index("retrying for 6")


def test_explain_names_owner_cause_and_remedy(run: Run, place: list[object]) -> None:
    shown = " ".join(run("explain", "5", *place).stdout.split())
    assert "Partition 5 has been on host-01 for 15 min, with epoch 3: it had no owner." in shown
    assert "It has been stuck for 2 min: PartitionStuck" in shown
    assert "raise max_process_time" in shown


def test_explain_of_an_unknown_partition_names_those_that_exist(run: Run, place: list[object]) -> None:
    result = run("explain", "99", *place)
    assert result.exit_code == 2
    assert "no partition '99'; there are: 0, 1, 2" in result.stderr


def test_explain_asks_the_source_for_a_lag_that_no_host_reports(run: Run, state: Path) -> None:
    at = ["explain", "0", "--name", "Delays", "--container", state / "state"]
    assert "`actorproc explain --source` asks the source" in " ".join(run(*at).stdout.split())
    known = " ".join(run(*at, "--source", state / "events").stdout.split())
    assert "it has caught up." in known


def test_workers_take_one_port_each() -> None:
    assert address_of_worker("127.0.0.1:8600", 2) == ["--http", "127.0.0.1:8602"]
    assert address_of_worker("[::1]:8600", 1) == ["--http", "[::1]:8601"]
    assert address_of_worker(None, 0) == []


def test_an_open_address_without_a_token_is_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    result = run("dashboard", "--container", tmp_path, "--http", "0.0.0.0:0")
    assert result.exit_code == 2
    assert "ACTORPROC_HTTP_TOKEN" in result.stderr

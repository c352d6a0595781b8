"""`actorproc status`: the position, the host and the error of each partition."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import orjson

from actorproc import Cursor, Producer
from actorproc.counts import Counts
from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.membership import GroupDocument
from actorproc.group.reports import HostReport, PartitionReport, SinkReport
from actorproc.output.checkpoint import Checkpoint
from actorproc.stores import open_store
from tests.cli.conftest import Run, events
from tests.cli.reading import LAYOUT

# status


def test_status_json_has_the_public_shape(run: Run, state: Path, place: list[object]) -> None:
    result = run("status", *place, "--source", state / "events", "--json")
    assert result.exit_code == 0
    status = orjson.loads(result.stdout)
    lags = {"lag": 0, "lag_exact": True, "lag_bytes": 0, "lag_seconds": 0.0}
    assert status["lag_seconds_end_to_end"] is None
    assert status.keys() == {"processor", *lags, "lag_seconds_end_to_end", "members", "partitions", "asked", "sinks"}
    assert {name: status[name] for name in lags} == lags
    assert status["processor"] == "Delays"
    assert status["members"] == []
    assert [partition["partition"] for partition in status["partitions"]] == ["0", "1", "2", "3"]
    first = status["partitions"][0]
    assert first.keys() >= {
        "partition", "owner", "epoch", "next_owner", "position", "end", "lag", "last_commit", "dead_letters"
    }  # fmt: skip
    assert first["owner"] is None
    assert first["epoch"] == 1
    assert all(partition["lag"] == 0 for partition in status["partitions"])
    assert all(partition["position"] == partition["end"] for partition in status["partitions"])
    assert sum(partition["records"] for partition in status["partitions"]) == 200
    assert sum(partition["rows"] for partition in status["partitions"]) == 180
    assert sum(partition["dead_letters"] for partition in status["partitions"]) == 20


def test_status_without_a_source_knows_no_end(run: Run, place: list[object]) -> None:
    status = orjson.loads(run("status", *place, "--json").stdout)
    assert {partition["end"] for partition in status["partitions"]} == {None}
    assert {partition["lag"] for partition in status["partitions"]} == {None}


def test_status_of_a_missing_log_does_not_advise_to_create_it(run: Run, tmp_path: Path, place: list[object]) -> None:
    result = run("status", *place, "--source", tmp_path / "nolog")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"error: there is no log at file://{tmp_path}/nolog: check the URL, or create it with "
    )


def test_status_for_people_shows_each_partition_and_that_nobody_runs_it(run: Run, place: list[object]) -> None:
    result = run("status", *place)
    assert result.exit_code == 0
    assert "no host is running" in result.stdout
    assert result.stdout.count("nobody") == 4
    assert "200 records, 20 dead letters" in result.stdout


def test_status_shows_why_a_host_cannot_list_partitions(run: Run, tmp_path: Path) -> None:
    async def looked() -> None:
        async with open_store(str(tmp_path)) as store:
            now, error = store.clock.wall(), "listing the partitions of PR failed: ConnectionError: db away"
            table = SinkReport(name="table", state="up to date")
            beat = Heartbeat("a", "1-60s", None, 42, now, now, 1, HostReport(error=error, tables=(table,)))
            await store.put(LAYOUT.host("a", "1-60s"), beat.to_json())

    anyio.run(looked)
    shown = run("status", "--name", "Delays", "--container", tmp_path).stdout
    assert "1 of 1 member alive, 0 of 0 partitions owned" in shown
    assert "a cannot look at the group or the source: listing the partitions of PR failed: Conn" in shown
    status = orjson.loads(run("status", "--name", "Delays", "--container", tmp_path, "--json", "--plan").stdout)
    assert [(member["host"], member["in_group"]) for member in status["members"]] == [("a", False)]
    assert status["members"][0]["error"].endswith("ConnectionError: db away")
    assert (status["partitions"], status["plan"]) == ([], [])


def test_status_plan_of_a_group_without_members_changes_nothing(run: Run, place: list[object]) -> None:
    result = run("status", *place, "--plan")
    assert "would change nothing" in result.stdout
    assert orjson.loads(run("status", *place, "--plan", "--json").stdout)["plan"] == []


def test_status_of_a_torn_checkpoint_says_so_and_shows_the_others(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    (tmp_path / "state" / LAYOUT.checkpoint("1")).write_bytes(b'{"version":1,"epo')
    status = orjson.loads(run("status", "--name", "Delays", "--container", tmp_path / "state", "--json").stdout)
    errors = [partition["error"] for partition in status["partitions"]]
    assert f"file://{tmp_path}/state/Delays/checkpoints/1.json: is not a valid Checkpoint" in errors[1]
    assert errors[0] is errors[2] is errors[3] is None


def test_status_shows_how_far_a_partition_is_within_a_chunk(run: Run, tmp_path: Path) -> None:
    async def half() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send_many(events(20))
        async with open_store(str(tmp_path / "state")) as store:
            done = Checkpoint(1, 0, Cursor("0", 7), Counts(8), time=1.0)
            await store.put(LAYOUT.checkpoint("0"), done.to_json())

    anyio.run(half)
    result = run("status", "--name", "Delays", "--container", tmp_path / "state", "--source", tmp_path / "events")
    row = next(line.split() for line in result.stdout.splitlines() if "nobody" in line)
    assert row[:5] == ["0", "nobody", "0", "7", "12"]


def test_partitions_with_the_same_trouble_share_a_line(run: Run, tmp_path: Path) -> None:
    async def failing() -> None:
        leases = {str(n): Lease("a", 1) for n in range(11)}
        why = {"why": ["0", "1", "2", "9", "10"], "another": ["4"]}
        trouble = {partition: text for text, partitions in why.items() for partition in partitions}
        async with open_store(str(tmp_path)) as store:
            await store.put(LAYOUT.group, GroupDocument.of({"a": Member("1")}, leases, put_id="put").to_json())
            progress = {partition: PartitionReport(1, trouble="failing") for partition in trouble}
            report = HostReport(failing=trouble, progress=progress)
            beat = Heartbeat("a", "1", "127.0.0.1:1", 42, 0.0, 0.0, 1, report)
            await store.put(LAYOUT.host("a", "1"), beat.to_json())

    anyio.run(failing)
    shown = run("status", "--name", "Delays", "--container", tmp_path).stdout
    assert [line for line in shown.splitlines() if line.startswith("partition")][1:] == [
        "partitions 0-2, 9-10: why",
        "partition 4: another",
    ]
    assert "1 of 1 member alive, 11 of 11 partitions owned, 0 records, 0 dead letters" in shown

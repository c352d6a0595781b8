"""`actorproc readers` and `actorproc trim`."""

from __future__ import annotations

import os
import re
import sys
import time
from functools import partial
from pathlib import Path
from shutil import copytree

import anyio
import orjson
import pytest

from actorproc import Producer
from tests.cli.conftest import Run, processed
from tests.test_readme import ROOT, Shell, commands

HOURS = 3600.0


@pytest.fixture
def place(state: Path, tmp_path: Path) -> Path:
    """A copy of the log and the container, three hours old."""
    copytree(state, tmp_path / "place")
    grow_old(tmp_path / "place")
    return tmp_path / "place"


def grow_old(place: Path) -> None:
    for path in place.rglob("*.parquet"):
        os.utime(path, (time.time() - 3 * HOURS,) * 2)


@pytest.fixture
def of(place: Path) -> list[str]:
    return ["--name", "Delays", "--container", str(place / "state")]


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*.parquet")}


@pytest.mark.skipif(sys.platform != "linux", reason="needs GNU touch")
def test_the_page_on_retention_tries_a_trim_on_an_older_copy(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for _ in range(2):
        anyio.run(processed, shell.folder)
    (tried,) = commands((ROOT / "docs" / "retention.md").read_text(), "What a trim deletes")
    assert re.search(r"^[1-9]\d* files, .* would be deleted from output Delays", shell.run(tried), re.MULTILINE)


def positions(run: Run, of: list[str]) -> dict[str, int]:
    [reader] = orjson.loads(run("readers", "list", "--json", *of).stdout)["readers"]
    return {partition["partition"]: partition["next"] for partition in reader["partitions"]}


def test_a_reader_needs_exactly_one_position(run: Run, of: list[str]) -> None:
    twice = run("readers", "add", "export", "--at", "0=3", "--spark", "y", *of)
    assert (twice.exit_code, twice.stdout) == (2, "")
    assert "the reader's position: give one of --spark URL" in twice.stderr
    assert "the reader's position: give one of --spark URL" in run("readers", "add", "export", *of).stderr


def test_a_number_with_too_many_digits_is_wrong_use(run: Run, of: list[str]) -> None:
    result = run("readers", "add", "export", "--at", "1" * 5_000, *of)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "write a number, or PARTITION=NUMBER" in result.stderr


def test_readers_are_added_shown_moved_and_removed(run: Run, of: list[str]) -> None:
    assert "has no readers: a trim deletes all data that is old enough" in run("readers", "list", *of).stdout
    added = run("readers", "add", "export", "--at", "0", "--at", "1=1", *of)
    assert "keeps the data that export (moved by hand) has not read" in added.stdout
    listed = orjson.loads(run("readers", "list", "--json", *of).stdout)
    [export] = listed["readers"]
    assert export["kind"] == "position"
    found = {partition["partition"]: (partition["next"], partition["behind"]) for partition in export["partitions"]}
    ends = {partition["partition"]: partition["end"] for partition in export["partitions"]}
    assert found == {p: (int(p == "1"), end - int(p == "1")) for p, end in ends.items()}
    table = run("readers", "list", *of).stdout
    assert "export: moved by hand" in table
    assert f"{sum(ends.values()) - 1} commits behind" in table
    run("readers", "add", "export", "--at", "1", *of)
    assert set(positions(run, of).values()) == {1}
    run("readers", "add", "export", "--at", "1=2", *of)
    assert positions(run, of) == {p: 1 + int(p == "1") for p in ends}
    assert "keeps no data for export" in run("readers", "remove", "export", *of).stdout
    assert "has no readers" in run("readers", "list", *of).stdout


def test_trim_says_which_files_wait_for_a_table(run: Run, place: Path, of: list[str]) -> None:
    """A query on a version of the table of the last hour still finds them."""
    anyio.run(partial(processed, place, sinks={"table": "delta"}))
    grow_old(place)
    before = files(place)
    done = run("trim", "--yes", *of).stdout
    assert re.search(r"^0 files, 0 B deleted from output Delays .*; \d wait for a table", done, re.MULTILINE), done
    document = orjson.loads(run("trim", "--yes", "--json", *of).stdout)
    assert document["files_deleted"] == 0 < sum(partition["files"] for partition in document["partitions"])
    assert files(place) == before


def test_trim_shows_first_and_deletes_with_yes(run: Run, place: Path, of: list[str]) -> None:
    anyio.run(processed, place)
    grow_old(place)
    before = files(place)
    run("readers", "add", "export", "--at", "1", *of)
    shown = run("trim", *of)
    assert "reader export reads 1 next" in shown.stdout
    assert "would be deleted from output Delays" in shown.stdout
    assert files(place) == before
    done = orjson.loads(run("trim", "--yes", "--json", *of).stdout)
    assert done["done"] is True
    gone = before - files(place)
    assert len(gone) == sum(partition["files"] for partition in done["partitions"]) == done["files_deleted"] > 0
    assert all(name.endswith("00000000000000000000.parquet") for name in gone)
    late = run("readers", "add", "late", "--at", "0", *of)
    assert late.exit_code == 2
    assert "the data that it reads next was trimmed" in late.stderr


def test_a_log_is_held_by_its_processor(run: Run, place: Path) -> None:
    log = ["--log", str(place / "events")]
    # The copy's processor registered where it ran.
    listed = orjson.loads(run("readers", "list", "--json", *log).stdout)
    assert [(reader["name"], reader["kind"]) for reader in listed["readers"]] == [("Delays", "processor")]
    assert {partition["behind"] for partition in listed["readers"][0]["partitions"]} == {0}
    shown = run("trim", *log)
    assert "no file of log" in shown.stdout
    assert "the newest file stays" in shown.stdout


def test_a_processor_that_could_not_register_is_added_by_hand(run: Run, place: Path) -> None:
    log = ["--log", str(place / "events")]
    added = run("readers", "add", "copy", "--processor", str(place / "state/Delays"), *log)
    assert f"keeps the data that copy (processor Delays at file://{place}/state) has not read" in added.stdout


def age_everything(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3 * HOURS,) * 2)


def test_a_processor_that_no_host_runs_expires(run: Run, place: Path) -> None:
    log, expiration = ["--log", str(place / "events")], ["--set", "reader_expiration=2h"]
    run("readers", "remove", "Delays", *log)
    run("readers", "add", "copy", "--processor", str(place / "state/Delays"), *log)
    age_everything(place / "state")
    anyio.run(appended, place)
    assert "reader copy reads" in run("trim", *log).stdout
    assert "expired: it has written nothing for 3h" in run("readers", "list", *log, *expiration).stdout
    shown = run("trim", *log, *expiration)
    assert "reader copy would be removed: it has written nothing for 3h" in shown.stderr
    assert "reader copy" not in shown.stdout
    assert "reader copy was removed" in run("trim", "--yes", *log, *expiration).stderr
    assert orjson.loads(run("readers", "list", "--json", *log).stdout)["readers"] == []


def test_an_idle_processor_does_not_expire_while_a_host_writes_heartbeats(run: Run, place: Path) -> None:
    log, expiration = ["--log", str(place / "events")], ["--set", "reader_expiration=2h"]
    run("readers", "add", "copy", "--processor", str(place / "state/Delays"), *log)
    age_everything(place / "state")
    (place / "state/Delays/hosts").mkdir(exist_ok=True)
    (place / "state/Delays/hosts/alive").write_text("{}")
    assert "expired" not in run("readers", "list", *log, *expiration).stdout


async def appended(place: Path) -> None:
    """Two more files in each partition; the older ones are old enough to be trimmed."""
    for _ in range(2):
        async with Producer(str(place / "events")) as producer:
            await producer.send_many([b"{}"] * 40, keys=[str(n).encode() for n in range(40)])
    grow_old(place)


def test_a_position_beyond_the_end_is_added_with_a_warning(run: Run, of: list[str]) -> None:
    added = run("readers", "add", "export", "--at", "0=0", "--at", "1=999", *of)
    assert added.exit_code == 0
    ends = {
        p["partition"]: p["end"]
        for p in orjson.loads(run("readers", "list", "--json", *of).stdout)["readers"][0]["partitions"]
    }
    assert added.stderr == f"warning: partition 1 ends at {ends['1']}: export is beyond the end, and holds no data\n"
    assert run("readers", "add", "export", "--at", f"1={ends['1']}", *of).stderr == ""


def test_a_processor_beyond_the_end_is_added_with_a_warning(run: Run, place: Path) -> None:
    """Part of the log is missing, or it is an older copy."""
    for path in (place / "events/partition=1").iterdir():
        path.unlink()
    added = run("readers", "add", "copy", "--processor", place / "state/Delays", "--log", place / "events")
    assert added.stderr == "warning: partition 1 ends at 0: copy is beyond the end, and holds no data\n"


def test_a_processor_of_another_stream_is_refused_as_a_reader(run: Run, place: Path, of: list[str]) -> None:
    added = run("readers", "add", "down", "--processor", place / "state/Delays", *of)
    assert (added.exit_code, added.stdout) == (2, "")
    assert "Delays in file://" in added.stderr
    assert "belongs to another stream: output Delays at file://" in added.stderr
    assert "has no readers" in run("readers", "list", *of).stdout


def test_a_reader_whose_processor_is_missing_is_reported(run: Run, place: Path) -> None:
    log = ["--log", str(place / "events")]
    run("readers", "add", "copy", "--processor", str(place / "gone/Delays"), *log)
    shown = run("readers", "list", *log)
    assert "copy: no processor 'Delays' at file://" in shown.stderr
    assert "If it is gone: readers remove" in shown.stderr


def test_an_unknown_processor_is_added_with_a_warning(run: Run, place: Path) -> None:
    log = ["--log", str(place / "events")]
    added = run("readers", "add", "copy", "--processor", str(place / "state/Dely"), *log)
    assert added.exit_code == 0
    assert "warning: no processor 'Dely' at file://" in added.stderr
    assert "there are: Delays" in added.stderr
    assert "until it has begun" in added.stderr
    assert run("readers", "add", "mine", "--processor", str(place / "state/Delays"), *log).stderr == ""


def test_lag_counts_only_partitions_that_a_reader_has_begun(run: Run, of: list[str]) -> None:
    run("readers", "add", "begun", "--at", "0=0", *of)
    added = run("readers", "add", "new", "--spark", "nowhere", *of)
    assert f"warning: nothing is at file://{Path.cwd()}/nowhere. It holds everything" in added.stderr
    begun, new = run("readers", "list", *of).stdout.split("new: Spark")
    assert "1 commit behind, in 1 of 4 partitions" in begun
    assert "has not begun every partition" in new
    assert "behind in all" not in new


def test_a_reader_with_an_unreadable_position_is_named(run: Run, place: Path, of: list[str]) -> None:
    assert "keeps all data until table" in run("readers", "add", "table", "--spark", place / "cp", *of).stdout
    (place / "cp/commits").mkdir(parents=True)
    (place / "cp/commits/3").write_text("v1\n{}")
    shown = run("trim", *of)
    assert "the position of reader table cannot be read" in shown.stdout
    assert "offsets/3: is missing" in shown.stderr
    assert "its position cannot be read, so nothing is trimmed" in run("readers", "list", *of).stdout


def test_a_corrupt_partition_does_not_hide_the_others(run: Run, place: Path, of: list[str]) -> None:
    torn = max((place / "events/partition=1").glob("*.parquet"))
    torn.write_bytes(torn.read_bytes()[:-20])
    document = orjson.loads(run("readers", "list", "--json", "--log", place / "events").stdout)
    assert document["errors"].keys() == {"1"}
    assert torn.name in document["errors"]["1"]
    [reader] = document["readers"]
    assert [row["behind"] for row in reader["partitions"]] == [0, None, 0, 0]
    table = run("readers", "list", "--log", place / "events").stdout
    assert f"partition 1: {document['errors']['1']}" in table
    assert "0 records behind, in 3 of 4 partitions" in table
    status = orjson.loads(run("status", "--json", "--source", place / "events", *of).stdout)
    shown = {partition["partition"]: partition for partition in status["partitions"]}
    assert [name for name, partition in shown.items() if partition["error"]] == ["1"]
    assert torn.name in shown["1"]["error"]
    assert (shown["1"]["end"], shown["1"]["lag"], shown["1"]["records"] > 0) == (None, None, True)
    assert [shown[name]["lag"] for name in "023"] == [0, 0, 0]


@pytest.mark.parametrize(
    "command",
    [["trim", "--yes"], ["readers", "list"], ["readers", "add", "x", "--at", "1"], ["readers", "remove", "x"]],
)
def test_a_log_and_an_output_are_not_given_together(
    run: Run, place: Path, of: list[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    before, log = files(place), ["--log", str(place / "events")]
    for typed in (of, of[:2], of[2:]):
        both = run(*command, *log, *typed)
        assert (both.exit_code, both.stdout) == (2, "")
        assert f"--log {log[1]!r} with {typed[0]} {typed[1]!r}" in both.stderr
        assert "give either --log, or --name and --container" in both.stderr
    assert files(place) == before
    monkeypatch.setenv("ACTORPROC_NAME", of[1])
    monkeypatch.setenv("ACTORPROC_CONTAINER", of[3])
    assert "give either" not in run(*command, *log).stderr, "the environment is for all commands"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trim"], "give the name and container of a processor for its output, or a log"),
        (["trim", "--log", "nowhere"], "there is no log at"),
        (["trim", "--log", "events", "--older-than", "5m"], "older_than = 300 s: allowed are 3600 s (1h) and more"),
        (["trim", "--log", "events", "--older-than", "soon"], "--older-than = 'soon': write seconds, or a number with"),
        (
            ["readers", "add", "x", "--log", "events"],
            "give one of --spark URL, --processor CONTAINER/NAME, --at NUMBER",
        ),
        (["readers", "add", "x", "--log", "events", "--at", "9=1"], "no partition '9'; there are: 0, 1, 2, 3"),
        (["readers", "add", "x", "--log", "events", "--at", "one"], "write a number, or PARTITION=NUMBER"),
        (["readers", "add", "x", "--log", "events", "--processor", "Delays"], "write CONTAINER/NAME"),
        (["readers", "add", "a b", "--log", "events", "--at", "1"], "reader name 'a b' is not usable"),
        (["readers", "remove", "x", "--log", "events"], "there is no reader 'x'; there are: Delays"),
    ],
)
def test_wrong_use_is_one_error_line(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(place)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr

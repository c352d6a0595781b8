"""`actorproc processors`, `logs` and `peek`."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from actorproc import Chunk, Processor, Record
from actorproc.admin.peek import PeekStart, peek
from actorproc.testing.memory_source import MemorySource
from tests.cli.conftest import QUICK, Delays, Run
from tests.cli.reading import lines


@pytest.fixture
def own(state: Path, tmp_path: Path) -> Path:
    """A copy of the session's container and log, to change."""
    shutil.copytree(state, tmp_path / "own")
    return tmp_path / "own"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def in_thread(run: Run, *arguments: object) -> Any:
    """Run a command beside this event loop."""
    return await anyio.to_thread.run_sync(lambda: run(*arguments))


def test_processors_are_listed_and_described(run: Run, state: Path) -> None:
    assert run("processors", "list", "--container", state / "state").stdout == "Delays\n"
    assert run("processors", "list", "--container", state / "state", "--json").stdout == '["Delays"]\n'
    place = ["--name", "Delays", "--container", state / "state"]
    (found,) = lines(run("processors", "describe", *place, "--json").stdout)
    assert (found["partitions"], found["hosts_alive"], found["readers"]) == (4, [], [])
    assert found["source"].endswith("/events")
    assert found["stored"]["checkpoints"]["objects"] == 4
    assert found["stored"]["output"]["bytes"] > 1000
    assert "hosts alive            none" in run("processors", "describe", *place).stdout


async def test_a_renamed_processor_goes_on_and_its_output_is_whole(run: Run, own: Path) -> None:
    place = ["--container", own / "state"]
    before = (await in_thread(run, "output", "--name", "Delays", *place, "--json")).stdout
    dry = await in_thread(run, "processors", "rename", "Late", "--name", "Delays", *place)
    assert "would rename Delays to Late, by copying" in dry.stdout
    assert (await in_thread(run, "processors", "list", *place)).stdout == "Delays\n"
    assert (await in_thread(run, "processors", "rename", "Late", "--name", "Delays", *place, "--yes")).exit_code == 0
    assert (await in_thread(run, "processors", "list", *place)).stdout == "Late\n"
    assert not _files(own / "state" / "Delays")
    assert sorted((await in_thread(run, "output", "--name", "Late", *place, "--json")).stdout) == sorted(before)
    log = str(own / "events")
    processor = Processor(Delays, source=log, container=str(own / "state"), name="Late", **QUICK)
    await processor.run(until_end=True)
    assert processor.statistics().counts.records == 0  # nothing is processed again


def test_a_deleted_processor_leaves_no_objects(run: Run, own: Path) -> None:
    place = ["--name", "Delays", "--container", own / "state"]
    assert "would delete Delays" in run("processors", "delete", *place).stdout
    assert run("status", *place).exit_code == 0
    assert "deleted Delays" in run("processors", "delete", *place, "--yes").stdout
    assert "no processor" in run("processors", "list", "--container", own / "state").stdout
    assert not _files(own / "state" / "Delays")


@pytest.mark.parametrize("act", [["delete"], ["rename", "Late"]])
def test_a_processor_with_readers_is_kept(run: Run, own: Path, act: list[str]) -> None:
    place = ["--name", "Delays", "--container", own / "state"]
    assert run("readers", "add", "query", *place, "--at", "0=0").exit_code == 0
    found = run("processors", *act, *place, "--yes")
    assert (found.exit_code, "registered readers: query" in found.stderr) == (2, True)


async def test_a_processor_with_a_live_host_is_kept(run: Run, own: Path) -> None:
    log = str(own / "events")
    async with Processor(Delays, source=log, container=str(own / "state"), host="alive", **QUICK):
        place = ["--name", "Delays", "--container", own / "state"]
        while "alive" not in (await in_thread(run, "status", *place)).stdout:
            pass
        found = await in_thread(run, "processors", "delete", *place, "--yes")
    assert (found.exit_code, "hosts of Delays are alive: alive" in found.stderr) == (2, True)


def test_an_interrupted_rename_is_run_again(run: Run, own: Path) -> None:
    old, new = own / "state" / "Delays", own / "state" / "Late"
    shutil.copytree(old, new)
    (new / "group.json").unlink()
    next((new / "output").rglob("*.parquet")).unlink()
    count = len([file for file in _files(old) if file.parent.name not in ("hosts", "probe")])
    place = ["--name", "Delays", "--container", own / "state"]
    assert run("processors", "rename", "Late", *place, "--yes").exit_code == 0
    assert run("processors", "list", "--container", own / "state").stdout == "Late\n"
    assert len(_files(new)) == count + 1  # the act is in the audit


@pytest.mark.parametrize("key", ["hosts/h~1.json", "checkpoints/99.json"])
def test_a_name_with_objects_of_another_processor_is_refused(run: Run, own: Path, key: str) -> None:
    foreign = own / "state" / "Late" / key
    foreign.parent.mkdir(parents=True)
    foreign.write_text("{}")
    found = run("processors", "rename", "Late", "--name", "Delays", "--container", own / "state", "--yes")
    assert (found.exit_code, f"of another processor 'Late', such as Late/{key}" in found.stderr) == (2, True)
    assert _files(own / "state" / "Late") == [foreign]


def test_a_copy_that_is_older_than_the_processor_is_refused(run: Run, own: Path) -> None:
    checkpoint = own / "state" / "Late" / "checkpoints" / "0.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("{}")
    found = run("processors", "rename", "Late", "--name", "Delays", "--container", own / "state", "--yes")
    assert "differs from Delays/checkpoints/0.json: delete all below Late/" in found.stderr
    assert run("processors", "list", "--container", own / "state").stdout == "Delays\n"


def test_a_name_that_is_taken_is_refused(run: Run, own: Path) -> None:
    found = run("processors", "rename", "Delays", "--name", "Delays", "--container", own / "state", "--yes")
    assert (found.exit_code, "there is a processor 'Delays'" in found.stderr) == (2, True)


def test_a_log_from_its_creation_to_its_end(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "events"
    assert "a log with 2 partitions" in run("logs", "create", log, "--partitions", 2).stdout
    file = tmp_path / "lines"
    file.write_text("one\ntwo\nthree\n")
    assert run("produce", file, "--log", log).exit_code == 0
    assert run("logs", "list", tmp_path / "logs").stdout.endswith("/logs/events\n")
    (found,) = lines(run("logs", "describe", log, "--json").stdout)
    assert (sum(p["end"] for p in found["partitions"]), found["readers"]) == (3, [])
    assert "would delete the log" in run("logs", "delete", log).stdout
    assert run("readers", "add", "slow", "--log", log, "--at", "0=0").exit_code == 0
    assert "registered readers: slow" in run("logs", "delete", log, "--yes").stderr
    assert run("readers", "remove", "slow", "--log", log).exit_code == 0
    assert "deleted the log" in run("logs", "delete", log, "--yes").stdout
    assert "no log at" in run("logs", "list", tmp_path / "logs").stdout


def test_peek_shows_records_from_any_place(run: Run, state: Path) -> None:
    log = ["--source", state / "events"]
    first = lines(run("peek", *log, "--json", "--limit", 3).stdout)
    assert [record["partition"] for record in first] == [name for name in "0123" for _ in range(3)]
    assert first[0]["key"].startswith("N")
    assert set(first[0]) == {"partition", "sequence", "key", "value", "headers", "timestamp"}
    every = lines(run("peek", *log, "--json", "--limit", 1000).stdout)
    assert len(every) == 200
    own = [record["sequence"] for record in every if record["partition"] == "1"]
    last = lines(run("peek", *log, "--json", "--partition", 1, "--from", "-2").stdout)
    assert [record["sequence"] for record in last] == own[-2:]
    later = lines(run("peek", *log, "--json", "--partition", 1, "--from", own[3], "--limit", 2).stdout)
    assert [record["sequence"] for record in later] == own[3:5]
    since = lines(run("peek", *log, "--json", "--from", "2000-01-01T00:00Z", "--limit", 1).stdout)
    assert len(since) == 4
    assert not run("peek", *log, "--from", "2100-01-01T00:00Z").stdout
    assert "1:" in run("peek", *log, "--partition", 1).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partition", "9"], "no partition '9'; there are: 0, 1, 2, 3"),
        (["--from", "yesterday"], "'earliest', 'latest', or a time with its zone"),
        (["--from", "-0"], "write -1 or less"),
    ],
)
def test_a_wrong_place_is_refused(run: Run, state: Path, arguments: list[str], said: str) -> None:
    found = run("peek", "--source", state / "events", *arguments)
    assert (found.exit_code, said in found.stderr) == (2, True)


async def test_a_peek_does_not_read_earlier_records() -> None:
    class Seekable(MemorySource):
        read_from: list[str]

        async def position_at(self, partition: str, sequence: int) -> str:
            return str(sequence)

        async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
            self.read_from.append(position)
            async for chunk in super().read(partition, position):
                yield chunk

    source = Seekable(1)
    source.append("0", [str(n).encode() for n in range(50)])
    for text, position, values in (("-2", "48", [48, 49]), ("-99", "0", [*range(50)]), ("47", "47", [47, 48, 49])):
        source.read_from, found = [], list[Record]()
        await peek(source, PeekStart.parse(text), 99, found.append)
        assert (source.read_from, [record.json() for record in found]) == ([position], values)


def test_a_log_grows_after_a_dry_run(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "events"
    assert run("logs", "create", log, "--partitions", 2).exit_code == 0
    planned = run("logs", "grow", log, "--partitions", 4).stdout
    assert "partitions 0-1 end, partitions 2-5 follow; --yes does it" in planned
    assert "has 2, and grows to a multiple" in run("logs", "grow", log, "--partitions", 3, "--yes").stderr
    assert "has 4 partitions" in run("logs", "grow", log, "--partitions", 4, "--yes").stdout
    assert "has 4 partitions already" in run("logs", "grow", log, "--partitions", 4, "--yes").stdout
    (found,) = lines(run("logs", "describe", log, "--json").stdout)
    assert [p["followed_by"] for p in found["partitions"]] == [["2", "4"], ["3", "5"], [], [], [], []]
    assert "followed by" in run("logs", "describe", log).stdout

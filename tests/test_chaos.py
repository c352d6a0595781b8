"""Chaos on real processes, short; and proof that its check can fail. Longer: `make chaos`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc.retention.boundary import Boundary, CompactedRange
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests import servers
from tests.chaos.archive import Archive
from tests.chaos.count_check import check_counts
from tests.chaos.counts import keeps_counts
from tests.chaos.objects import Objects, read_folder
from tests.chaos.run import PROCESSOR
from tests.chaos.sinks import compare
from tests.chaos.targets import COLUMNS, DeltaFolder, NewestInPostgres, Output, held
from tests.chaos.truth import Acks, Sent, check_log, read_acks, read_log
from tests.chaos.verdict import judge

SECONDS, HOSTS, PARTITIONS = 10, 6, 12
SKIPPED = 77  # exit code: the server cannot be had here


def chaos(store: str, folder: Path, *more: str) -> Path:
    """A run whose files stay in `folder`."""
    command = [sys.executable, "-m", "tests.chaos", "--store", store, "--folder", str(folder)]
    command += more or ("--seconds", str(SECONDS), "--hosts", str(HOSTS), "--partitions", str(PARTITIONS))
    ran = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    if ran.returncode == SKIPPED and not servers.REQUIRED:
        pytest.skip(ran.stdout.splitlines()[-1])
    assert ran.returncode == 0, ran.stdout
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that held."""
    return chaos("folder", tmp_path_factory.mktemp("chaos") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to tamper with."""
    return Path(shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns(".actorproc", "logs")))


async def faults(run: Path) -> list[str]:
    found: list[str] = []
    records = read_log(read_folder(run / "log"), found)
    found += check_log(records, read_acks(run / "acks"))
    verdict = judge(read_folder(run / "container"), PROCESSOR, records)
    async with open_store(str(run / "container")) as store:
        return found + verdict.faults + await check_counts(store, ProcessorLayout(PROCESSOR), records, verdict)


@pytest.mark.slow
async def test_every_record_ends_once_on_a_folder(run: Path) -> None:
    assert await faults(run) == []
    assert len(list((run / "container").glob("*/output/*/*.parquet"))) > PARTITIONS


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.parametrize("store", ["seaweedfs", "azurite", "gcs"])
def test_every_record_ends_once_in_a_cloud(tmp_path: Path, store: str) -> None:
    chaos(store, tmp_path / "run")


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.parametrize("more", [[], ["--no-transactions"]])
def test_every_record_of_a_topic_ends_once_and_is_forwarded(tmp_path: Path, more: list[str]) -> None:
    chaos("folder", tmp_path / "run", "--source", "kafka", "--seconds", "20", *more)


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.parametrize("broker", ["artemis", "broker-j"])
def test_every_message_of_a_queue_ends_once(tmp_path: Path, broker: str) -> None:
    pytest.importorskip("proton", reason="python-qpid-proton is not installed")
    chaos("folder", tmp_path / "run", "--source", broker, "--seconds", "20", "--partitions", "4", "--rate", "200")


@pytest.mark.long
def test_every_record_ends_as_often_as_resets_announce_during_a_rolling_upgrade(tmp_path: Path) -> None:
    more = ("--upgrade", "--operators", "--seconds", "30", "--hosts", "4", "--partitions", "6")
    chaos("folder", tmp_path / "run", *more)


# The check can fail


def output(run: Path) -> list[Path]:
    """Output files of the partition that has most."""
    folders = (run / "container" / PROCESSOR / "output").iterdir()
    return max((sorted(folder.iterdir()) for folder in folders), key=len)


def letters(run: Path) -> list[Path]:
    return sorted((run / "container" / PROCESSOR / "dead-letters").glob("*/*.jsonl"))


def repeat_a_file(run: Path) -> None:
    last = output(run)[-1]
    shutil.copy(last, last.with_name(f"{int(last.stem) + 1:020d}.parquet"))


def remove_a_file(run: Path) -> None:
    files = output(run)
    files[len(files) // 2].unlink()


def remove_the_last_file(run: Path) -> None:
    output(run)[-1].unlink()


def remove_dead_letters(run: Path) -> None:
    letters(run)[0].unlink()


def repeat_a_dead_letter(run: Path) -> None:
    with letters(run)[0].open("r+b") as file:
        line = file.readline()
        file.seek(0, os.SEEK_END)
        file.write(line)


def publish_dead_letters_of_no_commit(run: Path) -> None:
    first = letters(run)[0]
    shutil.copy(first, first.with_name(f"{10**6:020d}.jsonl"))


def change_rows(run: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a file of a partition that keeps counts: other rows and the footer that it had, with their number."""
    files = sorted((run / "container" / PROCESSOR / "output").glob("*/*.parquet"))
    counted = [path for path in files if keeps_counts(path.parent.name.partition("=")[2])]
    path = next(path for path in counted if pq.read_metadata(path).num_rows > 1)
    metadata = pq.read_metadata(path).metadata
    table = change(pq.read_table(path, partitioning=None))
    commit = orjson.loads(metadata[b"actorproc.commit"]) | {"rows": table.num_rows}
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**metadata, b"actorproc.commit": orjson.dumps(commit)})


def add_a_row(run: Path) -> None:
    change_rows(run, lambda table: pa.concat_tables([table, table.slice(0, 1)]))


def remove_a_row(run: Path) -> None:
    change_rows(run, lambda table: table.slice(1))


def change_counts(run: Path) -> None:
    change_rows(run, lambda table: table.set_column(table.schema.get_field_index("count"), "count", table["number"]))


def checkpoint(run: Path) -> tuple[Path, Any]:
    """The checkpoint of a partition that keeps state."""
    paths = (run / "container" / PROCESSOR / "checkpoints").iterdir()
    return next((path, found) for path in sorted(paths) if (found := orjson.loads(path.read_bytes())).get("state"))


def advance_a_checkpoint(run: Path) -> None:
    path, document = checkpoint(run)
    path.write_bytes(orjson.dumps(document | {"number": document["number"] + 10**6}))


def forget_the_newest_state(run: Path) -> None:
    path, document = checkpoint(run)
    path.write_bytes(orjson.dumps(document | {"state": document["state"][:-1]}))


def remove_a_state_object(run: Path) -> None:
    _, document = checkpoint(run)
    name = f"{document['state'][0]['label']:020d}-{document['state'][0]['put_id']}.parquet"
    next((run / "container" / PROCESSOR / "state").glob(f"*/{name}")).unlink()


def lose_the_end_of_the_log(run: Path) -> None:
    max((run / "log").glob("partition=*/*.parquet"), key=lambda path: path.name).unlink()


def repeat_a_file_of_the_log(run: Path) -> None:
    last = max((run / "log").glob("partition=*/*.parquet"), key=lambda path: path.name)
    shutil.copy(last, last.with_name(f"{int(last.stem) + pq.read_metadata(last).num_rows:020d}.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (repeat_a_file, "leads from|shares its put-id"),
        (remove_a_file, "stands where number"),
        (remove_the_last_file, "is lost|, and there are"),  # it may hold timers only
        (remove_dead_letters, "were never published"),
        (repeat_a_dead_letter, "are not those of output file"),
        (publish_dead_letters_of_no_commit, "were published from no output file"),
        (add_a_row, "should have ended as"),
        (remove_a_row, "rows so far, not"),
        (change_counts, "has the running values"),
        (forget_the_newest_state, "keys of state '"),
        (remove_a_state_object, "holds committed keyed state"),
        (advance_a_checkpoint, "the checkpoint is at output file"),
        (lose_the_end_of_the_log, "was told that its"),
        (repeat_a_file_of_the_log, "is in the log 2 times"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_the_check_finds(run: Path, tamper: Callable[[Path], None], told: str) -> None:
    tamper(run)
    found = await faults(run)
    assert any(re.search(told, fault) for fault in found), found


def test_a_silent_loss_differs_from_a_record_that_may_be_dropped() -> None:
    names = [("p1", number) for number in range(400)]
    log = {"0": [Sent(*name, 0.0) for name in names]}
    container: Objects = {f"{PROCESSOR}/checkpoints/0.json": orjson.dumps({"number": 0, "cursor": ["400", 399]})}
    lost = [fault for fault in judge(container, PROCESSOR, log).faults if "is lost" in fault]
    assert 0 < len(lost) < len(names)


def test_a_stopped_producer_has_an_answer_for_every_record() -> None:
    acks = Acks({0: ("0", 0)}, count=2)
    assert check_log({"0": [Sent("p1", 0, 0.0), Sent("p1", 1, 0.0)]}, {"p1": acks}) == [
        "p1 ended in good order with 1 unacknowledged: [1]"
    ]


@pytest.mark.parametrize(
    ("sent", "letters", "fault"),
    [
        ({("p", 0): 1}, {("p", 1): 1}, None),
        ({("p", 0): 2}, {("p", 1): 1}, "was forwarded 2 times"),
        ({("p", 0): 1}, {("p", 1): 2}, "is 2 dead letters"),
        ({("p", 0): 1, ("p", 1): 1}, {("p", 1): 1}, "was forwarded and is a dead letter"),
        ({("p", 0): 1}, {}, "was not forwarded"),
        ({("p", 0): 1, ("p", 1): 1, ("q", 0): 1}, {}, "is none of the topic"),
    ],
)
def test_a_topic_with_a_wrong_number_of_messages_is_found(
    sent: dict[tuple[str, int], int], letters: dict[tuple[str, int], int], fault: str | None
) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    from tests.chaos.forwarding import check_forwarded

    found = check_forwarded({"t-0": [Sent("p", 0, 0.0), Sent("p", 1, 0.0)]}, sent, letters)
    assert found == [] if fault is None else len(found) == 1 and fault in found[0]


def test_two_messages_under_the_same_headers_are_found_unless_they_are_copies() -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    from confluent_kafka import Message

    from tests.chaos.forwarding import without_copies

    def message(sequence: bytes, value: bytes) -> Message:
        headers = [("actorproc.partition", b"0"), ("actorproc.sequence", sequence)]
        return Message(value=value, headers=headers)  # type: ignore[arg-type]

    faults: list[str] = []
    first, copies = without_copies([message(b"1", b"a"), message(b"2", b"b"), message(b"1", b"a")], faults)
    assert ([one.value() for one in first], copies, faults) == ([b"a", b"b"], 1, [])
    without_copies([message(b"1", b"a"), message(b"1", b"b")], faults)
    assert len(faults) == 1


@pytest.mark.servers
@pytest.mark.long
def test_each_sink_holds_each_committed_row_once(tmp_path: Path) -> None:
    """Every sink at once. Servers are killed, sinks paused, partitions reset, the output is compacted and trimmed, and
    hosts are replaced by those of a later version with one more column."""
    calm = ("--seconds", "75", "--rate", "120", "--pace", "6")
    chaos("folder", tmp_path / "run", "--sinks", "--operators", "--upgrade", *calm)


def row(number: int, token: str = "a", *, gone: bool = False) -> dict[str, Any]:
    """A committed row; its sequence is its number."""
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    return values | {"_sequence": number, "producer": "p", "number": number, "part": 0, "token": token, "gone": gone}


def boundary(lowest: int, *ranges: tuple[int, int]) -> Boundary:
    return Boundary(lowest, tuple(CompactedRange(first, stop, "p", 1, 1, 0, 0.0, 0.0) for first, stop in ranges))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([1, 2, 3], []),
        ([0, 1, 2, 3], []),
        ([1, 3], ["sink t lacks 1 of 3 rows"]),
        ([1, 2, 2, 3], ["sink t has 1 rows too many"]),
        ([0, 0, 1, 2, 3], ["sink t has 1 rows too many"]),
        ([1, 2, 3, 4], ["sink t has 1 rows too many"]),
    ],
)
def test_the_comparison_with_a_sink_finds(found: list[int], told: list[str]) -> None:
    """Commit 0 is trimmed; it is in a compacted file with commit 1."""
    output = Output({"0": [[row(n)] for n in range(4)]}, {"0": boundary(1, (0, 2))})
    rows = Counter(held({**row(n), "_partition": "0"}) for n in found)
    table = DeltaFolder(Path())
    faults = compare("t", rows, table.expected(output), table.allowed(output))
    assert len(faults) == len(told)
    assert all(text in fault for fault, text in zip(faults, told, strict=True))


def test_the_newest_row_of_each_key_is_expected_unless_it_deletes_the_key() -> None:
    commits = [[row(1), row(2)], [row(1, "b"), row(2, "b", gone=True)], [row(3, gone=True)], [row(3, "c")]]
    target = NewestInPostgres("postgresql://")
    expected = target.expected(Output({"0": commits}, {}))
    assert {(values[2], values[8]) for _, values in expected} == {(1, "b"), (3, "c")}


def test_files_that_a_trim_deletes_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "container" / PROCESSOR / "output" / "partition=0"
    folder.mkdir(parents=True)
    archive = Archive(tmp_path / "container", PROCESSOR, tmp_path / "archive")
    for number in range(3):
        (folder / f"{number:020d}.parquet").write_text(f"{number}")
        archive.keep()
        assert archive.has_deleted() is (number > 0)
        (folder / f"{number:020d}.parquet").unlink()
    assert [body for _, body in sorted(archive.objects().items())] == [b"0", b"1", b"2"]

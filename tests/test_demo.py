"""The demo: its parts by themselves, and the whole as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest

from actorproc.demo import DemoFailed
from actorproc.demo.check import Answer, Letters, find_faults
from actorproc.demo.data import DEPARTURES, CarrierDelay, Truth, events, load_departures, truth
from actorproc.demo.fleet import Fleet
from actorproc.demo.folder import DemoFolder
from actorproc.errors import UsageError

DEMO = [sys.executable, "-m", "actorproc", "demo"]


# Data


def test_the_year_has_the_published_departures_and_cancellations() -> None:
    told = truth(load_departures())
    assert told.events == DEPARTURES == 336_776
    assert told.never_departed == 8_255
    assert sum(line.flights for line in told.carriers) == 336_776 - 8_255
    assert (len(told.carriers), told.carriers[-5].name) == (16, "United Air Lines Inc.")


def test_times_of_the_events_give_the_delays_of_the_csv() -> None:
    departures = load_departures()
    departures = departures.take(list(range(0, len(departures), 7)))  # of each day of the year
    delays: dict[str, list[float]] = {}
    never = 0
    for event in events(departures):
        flight = json.loads(event.value)
        if flight["departed"] is None:
            never += 1
            continue
        late = datetime.fromisoformat(flight["departed"]) - datetime.fromisoformat(flight["scheduled"])
        delays.setdefault(flight["carrier"], []).append(late.total_seconds() / 60)
    told = truth(departures)
    assert never == told.never_departed
    assert {c: (len(d), sum(d) / len(d)) for c, d in delays.items()} == {
        line.carrier: (line.flights, line.mean) for line in told.carriers
    }


def test_events_are_keyed_by_tail_number_and_in_order_of_time() -> None:
    sent = list(events(load_departures().slice(0, 20_000)))
    assert len(sent) == 20_000
    assert [event.timestamp for event in sent] == sorted(event.timestamp for event in sent)
    keys = Counter(event.key for event in sent)
    tails = Counter(json.loads(event.value)["tail"] for event in sent)
    assert keys[None] == tails[None] > 0
    assert {key.decode(): n for key, n in keys.items() if key} == {tail: n for tail, n in tails.items() if tail}


# Check

AA = CarrierDelay("AA", "American Airlines Inc.", 70, 8.5)
UA = CarrierDelay("UA", "United Air Lines Inc.", 20, 12.25)
TRUTH = Truth(events=100, never_departed=10, carriers=[AA, UA])
ANSWER = Answer(rows=90, repeated=0, carriers=[UA, AA])
LETTERS = Letters(count=10, repeated=0, types={"NeverDeparted": 10})


def test_a_dataset_that_is_right_has_no_faults() -> None:
    assert find_faults(TRUTH, ANSWER, LETTERS) == []


@pytest.mark.parametrize(
    ("answer", "letters", "fault"),
    [
        (
            replace(ANSWER, carriers=[AA, replace(UA, mean=12.250000000000002)]),
            LETTERS,
            r"tables differ.*UA.*mean 12.25, .*mean 12.250000000000002",
        ),
        (replace(ANSWER, carriers=[AA, replace(UA, flights=21)]), LETTERS, r"tables differ.*20 flights.*21 flights"),
        (replace(ANSWER, carriers=[AA]), LETTERS, r"tables differ.*UA.*Spark says nothing"),
        (
            replace(ANSWER, carriers=[AA, UA, replace(UA, carrier="XX")]),
            LETTERS,
            r"tables differ in 1 of 3 carriers, first: the CSV says nothing.*XX",
        ),
        (replace(ANSWER, rows=91), LETTERS, r"91 rows and 10 dead letters are 101, but 100 events"),
        (ANSWER, replace(LETTERS, count=9), r"90 rows and 9 dead letters are 99, but 100"),
        (ANSWER, replace(LETTERS, count=11), r"11 dead letters, but 10 flights never departed"),
        (replace(ANSWER, repeated=3), LETTERS, r"^3 \(partition, _sequence\) have more than one row"),
        (ANSWER, replace(LETTERS, repeated=2), r"^2 \(partition, sequence\) have more than one dead letter"),
    ],
)
def test_each_difference_is_a_fault(answer: Answer, letters: Letters, fault: str) -> None:
    assert any(re.search(fault, told) for told in find_faults(TRUTH, answer, letters))


# Record


# Folder, Java


def test_a_folder_that_is_not_the_demos_own_is_never_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "demo-data"
    folder.mkdir()
    (folder / "thesis.txt").write_text("the only copy")
    with pytest.raises(UsageError, match=r"demo-data is not the demo's"):
        DemoFolder(folder).prepare(1_000)
    assert (folder / "thesis.txt").read_text() == "the only copy"


def test_the_demos_own_folder_is_emptied(tmp_path: Path) -> None:
    places = DemoFolder(tmp_path / "demo-data")
    places.prepare(1_000)
    (places.logs / "old.log").write_text("old")
    places.prepare(2_000)
    assert (places.events(), list(places.logs.iterdir())) == (2_000, [])


def test_missing_java_is_one_error_line_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": str(tmp_path / "empty")}
    run = subprocess.run(DEMO, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert re.fullmatch(
        r"error: the demo needs Java 17 or newer for Spark, and there is none on PATH: install .*\n", run.stderr
    )
    assert run.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


# Fleet


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


async def test_a_host_that_ends_alone_ends_the_demo(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    pids: dict[str, int] = {}
    commands = {
        "a": python("import time; time.sleep(600)"),
        "b": python("import sys; print('no such bucket', file=sys.stderr); sys.exit(3)"),
    }
    expected = pytest.RaisesExc(DemoFailed, match=r"(?s)b ended on its own with exit code 3.*b\.log.*no such bucket")
    with pytest.RaisesGroup(expected):
        async with Fleet(commands, logs=tmp_path, alert=lambda host, text: told.append((host, text))) as fleet:
            pids = fleet.pids
            await anyio.sleep_forever()
    assert told == [("b", "no such bucket")]
    assert (tmp_path / "b.log").read_text() == "no such bucket\n"
    assert len(pids) == 2
    assert not any(map(alive, pids.values()))


async def test_only_errors_of_a_host_are_passed_on(tmp_path: Path) -> None:
    told: list[str] = []
    quiet, loud = (
        '{"event":"partition.opened","level":"info"}',
        '{"event":"partition.failed","level":"error","partition":"3"}',
    )
    script = f"import time; print({quiet!r}, {loud!r}, sep='\\n', flush=True); time.sleep(600)"
    async with Fleet({"a": python(script)}, logs=tmp_path, alert=lambda _, text: told.append(text)):
        with anyio.fail_after(30):
            while not told:
                await anyio.sleep(0.01)
    assert told == ["partition.failed: partition=3"]
    assert (tmp_path / "a.log").read_text() == f"{quiet}\n{loud}\n"


async def test_a_host_that_fails_while_draining_fails_the_demo(tmp_path: Path) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        "print('up', flush=True); signal.pause()"
    )
    log = tmp_path / "a.log"
    with pytest.RaisesGroup(pytest.RaisesExc(DemoFailed, match="a stopped with exit code 7 when asked to drain")):
        async with Fleet({"a": python(script)}, logs=tmp_path, alert=lambda *_: None) as fleet:
            with anyio.fail_after(30):
                while not log.exists() or not log.read_text():
                    await anyio.sleep(0.01)
            await fleet.stop()


# The whole


def spawned(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"host-\d \(pid (\d+)\)", output)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that has just started its hosts."""
    process = subprocess.Popen(
        [*DEMO, "--events", "40000"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process
    process.kill()
    process.communicate()


def hosts_of(demo: subprocess.Popen[str]) -> list[int]:
    """Process ids of its hosts, once they share the partitions."""
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if "share the partitions" in line:
            break
    pids = spawned(seen)
    assert len(pids) == 3, seen
    assert all(map(alive, pids)), seen
    return pids


@pytest.mark.slow
def test_an_interrupted_demo_leaves_no_process_behind(running: subprocess.Popen[str]) -> None:
    pids = hosts_of(running)
    running.send_signal(signal.SIGINT)
    rest, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "error: interrupted by SIGINT" in rest
    assert not any(map(alive, pids))


@pytest.mark.slow
async def test_hosts_of_a_killed_demo_end(running: subprocess.Popen[str]) -> None:
    pids = hosts_of(running)
    running.kill()
    try:
        with anyio.fail_after(60):
            while any(map(alive, pids)):
                await anyio.sleep(0.05)
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_demo_survives_a_kill_and_notices_damage(tmp_path: Path) -> None:
    run = subprocess.run(
        [*DEMO, "--events", "40000"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    told = truth(load_departures().slice(0, 40_000))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "EQUAL: Spark's table is the one computed straight from the CSV" in run.stdout
    assert f"{40_000 - told.never_departed:,} rows + {told.never_departed:,} dead letters" in run.stdout
    assert re.search(r"kill -9 host-2 .* runs partitions \d", run.stdout)
    assert re.search(r"taken over \d+\.\d s after the kill: .*by host-[13]", run.stdout)
    assert not any(map(alive, spawned(run.stdout)))

    # Seen from here, without the demo's own eyes.
    output = tmp_path / "demo-data/state/delays/output"
    files = sorted(output.glob("partition=*/*.parquet"))
    table = pq.ParquetDataset(output).read(columns=["carrier", "minutes", "partition", "_sequence"])
    places = set(zip(table["partition"].to_pylist(), table["_sequence"].to_pylist(), strict=True))
    assert len(places) == table.num_rows == 40_000 - told.never_departed
    means = table.group_by("carrier").aggregate([("minutes", "mean")]).sort_by("carrier")["minutes_mean"].to_pylist()
    assert means == [line.mean for line in told.carriers]

    shutil.copy(files[0], files[0].with_name(f"{10**6:020d}.parquet"))
    files[-1].unlink()
    found = subprocess.run([*DEMO, "--check"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "NOT EQUAL" in found.stdout
    assert f"{pq.read_metadata(files[0]).num_rows:,} (partition, _sequence) have more than one row" in found.stdout
    assert "but 40,000 events were sent" in found.stdout

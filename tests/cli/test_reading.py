"""Commands that only read: status, output, dead-letters list and show, doctor."""

from __future__ import annotations

import io
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from actorproc import Cursor, PartitionContext, Processor, Producer, Record
from actorproc.cli import common, doctor
from actorproc.errors import CorruptObject
from actorproc.group.assignment import Lease, Member
from actorproc.group.heartbeat import Heartbeat
from actorproc.group.membership import GroupDocument
from actorproc.handlers import JsonRows, RecordHandler
from actorproc.layout import ProcessorLayout
from actorproc.output.checkpoints import Checkpoint, Totals
from actorproc.output.schema import agree_on_schema
from actorproc.parquet import write_parquet
from actorproc.rows.schema import parse_schema
from actorproc.sources import OutputSource
from actorproc.store import Store
from actorproc.stores import open_store
from tests.cli.conftest import QUICK, Run, events, processed

LAYOUT = ProcessorLayout("Delays")


def lines(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]


@pytest.fixture
def place(state: Path) -> list[object]:
    return ["--name", "Delays", "--container", state / "state"]


# status


def test_status_json_has_the_public_shape(run: Run, state: Path, place: list[object]) -> None:
    result = run("status", *place, "--source", state / "events", "--json")
    assert result.exit_code == 0
    status = orjson.loads(result.stdout)
    assert status.keys() == {"processor", "lag", "lag_exact", "members", "partitions"}
    assert (status["lag"], status["lag_exact"]) == (0, True)
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


def test_status_refuses_another_log_than_the_one_that_is_processed(
    run: Run, state: Path, place: list[object], tmp_path: Path
) -> None:
    async def other() -> None:
        async with Producer(str(tmp_path / "other"), partitions=4) as producer:
            await producer.send("1")

    anyio.run(other)
    result = run("status", *place, "--source", tmp_path / "other")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"file://{tmp_path}/other is not file://{state}/events" in result.stderr


def test_status_for_people_shows_each_partition_and_that_nobody_runs_it(run: Run, place: list[object]) -> None:
    result = run("status", *place)
    assert result.exit_code == 0
    assert "no host is running" in result.stdout
    assert result.stdout.count("nobody") == 4
    assert "200 records, 20 dead letters" in result.stdout


def test_status_shows_a_host_that_cannot_list_the_partitions_of_its_source_and_why(run: Run, tmp_path: Path) -> None:
    async def looked() -> None:
        async with open_store(str(tmp_path)) as store:
            now, error = store.clock.wall(), "listing the partitions of PR failed: ConnectionError: db away"
            beat = Heartbeat("a", "1-60s", None, 42, now, now, 1, {"partitions": 0, "failing": {}, "error": error})
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
    assert f"file://{tmp_path}/state/Delays/checkpoints/1.json: is no checkpoint" in errors[1]
    assert errors[0] is errors[2] is errors[3] is None


def test_a_processor_that_never_ran_there_is_named_with_those_that_did(run: Run, state: Path) -> None:
    result = run("status", "--name", "Delay", "--container", state / "state")
    assert result.exit_code == 2
    assert "no processor 'Delay'" in result.stderr
    assert "there are: Delays" in result.stderr
    assert "Traceback" not in result.output


def test_a_log_or_the_folder_of_a_processor_is_no_container_and_the_message_says_so(run: Run, state: Path) -> None:
    result = run("status", "--name", "Delays", "--container", state / "events")
    assert result.exit_code == 2
    assert "that is a log. Give it as the source" in result.stderr
    result = run("status", "--name", "Delays", "--container", state / "state" / "Delays")
    assert result.exit_code == 2
    assert f"its container is file://{state}/state" in result.stderr


def test_a_container_or_the_folder_of_a_processor_is_no_source_and_the_message_says_so(
    run: Run, state: Path, place: list[object]
) -> None:
    for source, what in ((state / "state", "is a container, in which processors live (Delays), and no log"),
                         (state / "state" / "Delays", "is the folder of a processor, and no log")):  # fmt: skip
        result = run("status", *place, "--source", source)
        assert result.exit_code == 2
        assert f"file://{source} {what}: give the log, or a processor's output as actorproc+" in result.stderr


@pytest.mark.parametrize("below", ["output", "output/partition=0", "dead-letters/mine"])
def test_a_place_inside_what_a_processor_keeps_is_no_log_and_the_message_says_where_its_output_is(
    run: Run, state: Path, place: list[object], tmp_path: Path, below: str
) -> None:
    folder = state / "state" / "Delays"
    inside = f"file://{folder}/{below} is inside what processor Delays keeps, and no "
    (tmp_path / "link").symlink_to(folder / "output")
    for source, says in ((folder / below, inside), (tmp_path / "link", "/link is inside what processor Delays keeps")):
        result = run("status", *place, "--source", source)
        assert result.exit_code == 2
        assert says in result.stderr
        assert f"log: give the log, or a processor's output as actorproc+file://{folder}\n" in result.stderr
    before = sorted(folder.rglob("*"))
    (tmp_path / "flights.jsonl").write_bytes(b"{}\n")
    for more in ([], ["--partitions", "8"]):
        result = run("produce", "--log", folder / below, *more, tmp_path / "flights.jsonl")
        assert (result.exit_code, result.stdout) == (2, "")
        assert inside in result.stderr
        assert "--partitions 8 FILE" not in result.stderr
    assert "and no place for a log: give it one of its own" in result.stderr
    assert sorted(folder.rglob("*")) == before
    for command in (["trim"], ["readers", "list"]):
        result = run(*command, "--log", folder / below)
        assert f"for a processor's output --name Delays --container file://{state}/state" in result.stderr


def test_a_group_document_of_somebody_else_above_a_log_is_no_processor(run: Run, tmp_path: Path) -> None:
    (tmp_path / "group.json").write_text('{"members": ["me"]}')
    (tmp_path / "flights.jsonl").write_bytes(b"{}\n")
    assert run("produce", "--log", tmp_path / "a/b", "--partitions", "1", tmp_path / "flights.jsonl").exit_code == 0


def test_processors_are_named_though_somebody_made_a_log_among_them(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    shutil.copy(state / "events" / "log.json", tmp_path / "state")
    result = run("status", "--name", "Delay", "--container", tmp_path / "state")
    assert "there are: Delays" in result.stderr
    assert "that is a log" not in result.stderr


def test_dead_letters_of_a_type_that_there_is_not_say_which_there_are(run: Run, place: list[object]) -> None:
    result = run("dead-letters", "list", *place, "--error", "KeyErr", "--json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no dead letter with an error of type 'KeyErr'; there are: KeyError (20)\n"
    assert run("dead-letters", "list", *place, "--error", "KeyErr").stdout == ""
    assert run("dead-letters", "list", *place, "--error", "KeyError", "--json").stderr == ""


@pytest.mark.parametrize("command", ["list", "replay", "purge"])
def test_dead_letters_of_a_partition_that_there_is_not_are_refused(
    run: Run, state: Path, place: list[object], command: str
) -> None:
    source = ["--source", state / "events"] if command == "replay" else []
    result = run("dead-letters", command, *place, *source, "--partition", "77")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no partition '77'; there are: 0, 1, 2, 3" in result.stderr


def test_dead_letters_are_replayed_into_a_log_alone(run: Run, state: Path, place: list[object], tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    result = run("dead-letters", "replay", *place, "--source", "mysrc:Lines")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "appended to a log, and that is a source of your own, which is only read" in result.stderr
    (tmp_path / "state" / LAYOUT.origin).unlink()
    result = run("dead-letters", "replay", "--name", "Delays", "--container", tmp_path / "state")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "does not say what Delays reads: give the log with --source" in result.stderr
    told = run("dead-letters", "replay", "--help").stdout
    assert "The log to which the letters" in told
    assert "MODULE:NAME" not in told


def test_a_purge_says_which_of_what_was_chosen_stays_beside_letters_that_were_not(
    run: Run, state: Path, tmp_path: Path
) -> None:
    for part in ("state", "events"):
        shutil.copytree(state / part, tmp_path / part)
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    purge = ["dead-letters", "purge", *place, "--yes"]
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    first = f"{letters[0]['partition']}:{letters[0]['sequence']}"
    beside = sum(letter["partition"] == letters[0]["partition"] for letter in letters) - 1  # one commit in each
    assert run("dead-letters", "replay", *place, "--source", tmp_path / "events", first).exit_code == 0
    stays = f"1 replayed one stays: it shares a commit with {beside} that were not replayed"
    assert run(*purge, "--replayed").stdout == f"0 dead letters purged; {stays}\n"
    before = ["--before", "2100-01-01T00:00Z"]
    assert run(*purge, "--replayed", *before).stdout == (
        f"0 dead letters purged; 1 replayed and older one stays: it shares a commit with {beside} that were not both\n"
    )
    held = run(*purge, "--replayed", "--json")
    assert (lines(held.stdout), held.exit_code) == ([{"purged": 0, "kept": 0, "held": 1}], 0), (
        "nothing is to be done yet"
    )


def test_dead_letters_are_replayed_by_name_or_by_their_error(run: Run, state: Path, tmp_path: Path) -> None:
    for part in ("state", "events"):
        shutil.copytree(state / part, tmp_path / part)
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    replay = ["dead-letters", "replay", *place, "--source", tmp_path / "events"]
    first, second, *_ = (
        f"{letter['partition']}:{letter['sequence']}"
        for letter in lines(run("dead-letters", "list", *place, "--json").stdout)
    )
    assert "1 dead letter appended to" in run(*replay, second).stdout
    assert lines(run(*replay, first, second, second, "--json").stdout) == [{"replayed": 1, "replayed_before": 1}]
    listed = lines(run("dead-letters", "list", *place, "--replayed", "--json").stdout)
    assert {f"{letter['partition']}:{letter['sequence']}" for letter in listed} == {first, second}
    purged = run("dead-letters", "purge", *place, "--replayed", "--yes", "--json")
    assert lines(purged.stdout) == [{"purged": 0, "kept": 0, "held": 2}], (
        "others that were committed with them are left"
    )
    assert "replayed" in run("dead-letters", "show", first, *place).stdout

    none = run(*replay, "--error", "KeyErr", "--json")
    assert lines(none.stdout) == [{"replayed": 0, "replayed_before": 0}]
    assert none.stderr == "no dead letter with an error of type 'KeyErr'; there are: KeyError (20)\n"
    assert lines(run(*replay, "--error", "KeyError", "--json").stdout) == [{"replayed": 18, "replayed_before": 2}]
    for wrong, says in (("0:999999", "no dead letter 0:999999"), ("0", "write PARTITION:SEQUENCE")):
        result = run(*replay, first, wrong)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
    assert "do not go with letters by name" in run(*replay, first, "--error", "KeyError").stderr


def test_status_shows_how_far_a_partition_is_within_a_chunk(run: Run, tmp_path: Path) -> None:
    async def half() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send_many(events(20))
        async with open_store(str(tmp_path / "state")) as store:
            done = Checkpoint(1, 0, Cursor("0", 7), Totals(8), time=1.0)
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
            await store.put(LAYOUT.group, GroupDocument({"a": Member("1")}, leases, "put").to_json())
            beat = Heartbeat("a", "1", "127.0.0.1:1", 42, 0.0, 0.0, 1, {"failing": trouble})
            await store.put(LAYOUT.host("a", "1"), beat.to_json())

    anyio.run(failing)
    shown = run("status", "--name", "Delays", "--container", tmp_path).stdout
    told = [line for line in shown.splitlines() if "on a: " in line]
    assert told == [
        "partitions 0-2, 9-10: on a: why",
        "partition 4: on a: another",
    ]
    assert "1 of 1 member alive, 11 of 11 partitions owned, 0 records, 0 dead letters" in shown


def test_a_container_without_any_processor_says_so(run: Run, tmp_path: Path) -> None:
    result = run("output", "--name", "Delays", "--container", tmp_path / "empty")
    assert result.exit_code == 2
    assert "no processor has ever run there" in result.stderr


# output


def test_output_json_is_every_row_once_by_partition_and_sequence(run: Run, place: list[object]) -> None:
    rows = lines(run("output", *place, "--json").stdout)
    assert len(rows) == 180
    assert rows[0].keys() == {"_partition", "_sequence", "tail", "delay"}
    places = [(row["_partition"], row["_sequence"]) for row in rows]
    assert places == sorted(set(places))
    assert sorted(row["delay"] for row in rows) == [float(n) for n in range(200) if n % 10]


def test_output_of_one_partition(run: Run, place: list[object]) -> None:
    everything = lines(run("output", *place, "--json").stdout)
    partition = everything[-1]["_partition"]
    found = lines(run("output", *place, "--json", "--partition", partition).stdout)
    assert found == [row for row in everything if row["_partition"] == partition]
    result = run("output", *place, "--partition", "9")
    assert result.exit_code == 2
    assert "no partition '9'; there are: 0, 1, 2, 3" in result.stderr


def test_output_for_people_is_a_table(run: Run, place: list[object]) -> None:
    result = run("output", *place, "--tail", "3")
    assert result.stdout.split()[:4] == ["_partition", "_sequence", "tail", "delay"]
    assert len([line for line in result.stdout.splitlines() if " N" in line]) == 3


def test_a_time_in_the_table_of_the_output_is_the_one_that_json_shows(run: Run, tmp_path: Path) -> None:
    async def timed() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send(b'{"at": "2026-01-01T12:03:00.25+01:00", "local": "2026-01-01T11:03:00"}')
        settings = {"options": {"output_schema": "at timestamp, local timestamp_ntz"}, **QUICK}
        places: dict[str, Any] = {"source": str(tmp_path / "events"), "container": str(tmp_path / "state")}
        await Processor(JsonRows, name="Delays", **places, **settings).run(until_end=True)

    anyio.run(timed)
    command = ("output", "--name", "Delays", "--container", tmp_path / "state")
    (row,) = lines(run(*command, "--json").stdout)
    assert (row["at"], row["local"]) == ("2026-01-01T11:03:00.250000Z", "2026-01-01T11:03:00")
    assert run(*command).stdout.splitlines()[-2].split() == ["0", "0", row["at"], row["local"]]


def narrow(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(common, "console", Console(width=width, highlight=False))


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_narrow_terminal_cuts_the_values_of_dead_letters_and_not_what_show_needs(
    run: Run, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    for file in (tmp_path / "state" / LAYOUT.dead_letters).rglob("*.jsonl"):
        wide = [letter | {"value": "x" * 200} for letter in lines(file.read_text())]
        file.write_bytes(b"".join(orjson.dumps(letter) + b"\n" for letter in wide))
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    narrow(monkeypatch, width)
    shown = run("dead-letters", "list", *place).stdout.splitlines()
    assert max(map(len, shown)) <= width
    assert shown.pop() == "20 dead letters: KeyError (20)"
    rows = [line.split() for line in shown if "KeyError" in line]
    assert [row[0] for row in rows] == [f"{letter['partition']}:{letter['sequence']}" for letter in letters]
    assert {tuple(row[2:4]) for row in rows} == {("KeyError", "'delay'")}
    assert [row[4] for row in rows] == [letter["key"] for letter in letters]


def test_a_narrow_terminal_cuts_columns_of_the_output_and_not_where_a_row_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wide() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send(orjson.dumps({"text": "a\nb" * 50, "more": "x" * 90}))
        settings = {"options": {"output_schema": "text string, more string"}, **QUICK}
        places: dict[str, Any] = {"source": str(tmp_path / "events"), "container": str(tmp_path / "state")}
        await Processor(JsonRows, name="Delays", **places, **settings).run(until_end=True)

    anyio.run(wide)
    narrow(monkeypatch, 80)
    shown = run("output", "--name", "Delays", "--container", tmp_path / "state").stdout.splitlines()
    assert max(map(len, shown)) <= 80
    (row,) = (line.split() for line in shown if "xx" in line)
    assert row[:4] == ["0", "0", "a", "ba"]
    assert row[-1].endswith("…")


def test_a_column_that_was_added_is_null_in_rows_from_before(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")

    async def add() -> None:
        async with open_store(str(tmp_path / "state")) as store:
            wider = parse_schema("tail string, delay double, late boolean")
            assert await agree_on_schema(store, LAYOUT, wider) == ["late"]
            assert await agree_on_schema(store, LAYOUT, wider) == []

    anyio.run(add)
    rows = lines(run("output", "--name", "Delays", "--container", tmp_path / "state", "--json").stdout)
    assert {tuple(row) for row in rows} == {("_partition", "_sequence", "tail", "delay", "late")}
    assert {row["late"] for row in rows} == {None}


def test_tail_is_what_was_committed_last_and_opens_no_other_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        anyio.run(processed, tmp_path)  # appends 200 more, and processes them
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    everything = lines(run("output", *place, "--json").stdout)
    assert len(everything) == 540
    opened = []
    get = Store.get

    async def noted(self: Store, key: str, **how: Any) -> Any:
        if key.endswith(".parquet"):
            opened.append(key)
        return await get(self, key, **how)

    monkeypatch.setattr(Store, "get", noted)
    tail = lines(run("output", *place, "--json", "--tail", "30").stdout)
    assert len(tail) == 30
    assert [row for row in everything if row in tail] == tail
    newest = {
        partition: max(row["_sequence"] for row in everything if row["_partition"] == partition)
        for partition in {row["_partition"] for row in tail}
    }
    for partition, last in newest.items():
        own = [row["_sequence"] for row in tail if row["_partition"] == partition]
        assert own[-1] == last, "it ends with the newest row"
    assert 0 < len(set(opened)) <= 3


def test_rows_below_the_boundary_do_not_belong_to_the_output(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")

    async def raise_boundary() -> None:
        async with open_store(str(tmp_path / "state")) as store:
            await store.put(LAYOUT.boundary("2"), b'{"version":1,"lowest":1}')

    anyio.run(raise_boundary)
    rows = lines(run("output", "--name", "Delays", "--container", tmp_path / "state", "--json").stdout)
    assert {row["_partition"] for row in rows} == {"0", "1", "3"}


def damaged(run: Run, *arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    said = result.stderr.removesuffix("\n")
    assert said.isprintable(), "one line, without what is in the file"
    assert "restore it from a backup" in said
    return str(said)


def test_damage_is_said_with_the_place_and_a_remedy_on_one_line(run: Run, state: Path, tmp_path: Path) -> None:
    place, source = tmp_path / "state", tmp_path / "events"
    shutil.copytree(state / "state", place)
    shutil.copytree(state / "events", source)
    given = ["--name", "Delays", "--container", place]
    replay = ["dead-letters", "replay", *given, "--source", source]

    key = LAYOUT.dead_letter_file("0", 0)
    (place / key).write_bytes(b"{\n\x00\n")
    for command in (["dead-letters", "list", *given], replay):
        said = damaged(run, *command)
        assert said.startswith(f"error: file://{place}/{key}: is no file of dead letters")
        assert "put an empty object in its place" in said
    (place / key).write_bytes(b"")
    assert run("dead-letters", "list", *given).exit_code == 0, "that was right"

    key = LAYOUT.output_file("0", 0)
    body = (place / key).read_bytes()
    footer = int.from_bytes(body[-8:-4], "little") + 8
    for broken in (body[:40], body[-footer:-8] * 2 + body[-8:], body[:-footer] + b"\x07\n" * 20 + body[40 - footer :]):
        (place / key).write_bytes(broken)
        assert damaged(run, "output", *given, "--json").startswith(f"error: file://{place}/{key}: ")

    (source / "log.json").write_bytes(b"{")
    for command in (replay, ["readers", "list", "--log", source]):
        assert damaged(run, *command).startswith(f"error: file://{source}/log.json: is no description of a log")

    (place / LAYOUT.group).write_bytes(b"{")
    assert damaged(run, "status", *given).startswith(f"error: file://{place}/Delays/group.json: is no group document")


@pytest.mark.parametrize(
    ("path", "value", "commands"),
    [
        (["number"], "7", ["trim", "purge"]),
        (["totals", "rows"], "", ["status"]),
        (["totals"], [], ["status"]),
        (["epoch"], True, ["status"]),
        (["time"], "soon", ["status"]),
    ],
)
def test_a_checkpoint_with_a_value_of_a_wrong_type_is_named(
    run: Run, state: Path, tmp_path: Path, path: list[str], value: object, commands: list[str]
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    key = LAYOUT.checkpoint("0")
    edit(tmp_path / "state" / key, path, value)
    given = ["--name", "Delays", "--container", tmp_path / "state"]
    for command in commands:
        result = run(*(["dead-letters", "purge", "--yes"] if command == "purge" else [command]), *given)
        assert f"{key}: is no checkpoint (TypeError('{path[-1]} = {value!r}: " in result.output.replace('"', "'")
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["time"], None, "time = None: str"),
        (["time"], "soon", "'soon'"),
        (["time"], "2013-01-01T00:00:00", "a time with its zone"),
        (["value"], {}, "value = {}: str or NoneType"),
        (["sequence"], "7", "sequence = '7': int"),
        (["error", "message"], 5, "message = 5: str"),
        (["headers"], [{}], "KeyError('key')"),
    ],
)
def test_a_dead_letter_with_a_value_of_a_wrong_type_is_named(
    run: Run, state: Path, tmp_path: Path, path: list[str], value: object, says: str
) -> None:
    place = tmp_path / "state"
    shutil.copytree(state / "state", place)
    key = LAYOUT.dead_letter_file("0", 0)
    edit(place / key, path, value)
    given = ["--name", "Delays", "--container", place]
    for command in (
        ["list", *given],
        ["list", "--json", *given],
        ["purge", "--yes", "--before", "2030-01-01T00:00Z", *given],
    ):
        said = damaged(run, "dead-letters", *command)
        assert said.startswith(f"error: file://{place}/{key}: is no file of dead letters (")
        assert says in said


def edit(file: Path, path: list[str], value: object) -> None:
    """Give the first line of JSON in the file another value."""
    first, *rest = file.read_bytes().splitlines()
    document = inner = orjson.loads(first)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    file.write_bytes(b"\n".join([orjson.dumps(document), *rest]))


def test_a_damaged_output_file_is_named(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    key = LAYOUT.output_file("0", 0)
    (tmp_path / "state" / key).write_bytes(b"PAR1 nothing PAR1")
    result = run("output", "--name", "Delays", "--container", tmp_path / "state", "--json")
    assert result.exit_code == 1
    assert key in result.stderr
    assert "Traceback" not in result.output


async def test_a_file_with_text_that_is_none_is_named_here_and_by_who_reads_it_as_a_source(
    run: Run, state: Path, tmp_path: Path
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    key = LAYOUT.output_file("0", 0)
    path = tmp_path / "state" / key
    file = pq.ParquetFile(path)
    table = file.read()
    footer = {"actorproc.commit": file.metadata.metadata[b"actorproc.commit"].decode()}
    none = pa.array([b"\xff"] * len(table), pa.binary()).view(pa.string())
    path.write_bytes(write_parquet(table.set_column(0, table.field(0), none), footer))
    result = await anyio.to_thread.run_sync(run, "output", "--name", "Delays", "--container", tmp_path / "state")
    assert result.exit_code == 1
    assert f"{key}: cannot be read" in result.stderr
    assert "Traceback" not in result.output
    async with open_store(str(tmp_path / "state")) as store:
        with pytest.raises(CorruptObject, match=rf"{key}: cannot be read"):
            await anext(OutputSource(store, "Delays").read("0", "0+0"))


def test_a_map_by_bytes_or_decimals_is_shown_and_read_by_the_next_processor(run: Run, tmp_path: Path) -> None:
    async def chain() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send(b"{}")
        container = str(tmp_path / "state")
        await Processor(Maps, source=str(tmp_path / "events"), container=container, **QUICK).run(until_end=True)
        source = f"actorproc+file://{container}/Maps"
        await Processor(Values, source=source, container=container, **QUICK).run(until_end=True)

    anyio.run(chain)
    there = ["--container", tmp_path / "state"]
    shown = {"m": {"/w==": 1}, "n": [{"1.50": 2}], "s": {"m": {"/w==": {"k": 3}}}}
    (row,) = lines(run("output", "--name", "Maps", *there, "--json").stdout)
    assert row == {"_partition": "0", "_sequence": 0, **shown}
    assert '{"/w==":1}' in run("output", "--name", "Maps", *there).stdout
    (row,) = lines(run("output", "--name", "Values", *there, "--json").stdout)
    assert orjson.loads(row["value"]) == shown


class Maps(RecordHandler):
    output_schema = "m map<binary, int>, n array<map<decimal(5,2), int>>, s struct<m: map<binary, map<string, int>>>"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        return {"m": {b"\xff": 1}, "n": [{Decimal("1.5"): 2}], "s": {"m": {b"\xff": {"k": 3}}}}


class Values(RecordHandler):
    output_schema = "value string"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        return {"value": record.text}


@pytest.mark.parametrize("column", range(3))
def test_a_byte_that_was_changed_in_an_output_file_is_noticed(
    run: Run, state: Path, tmp_path: Path, column: int
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    key = LAYOUT.output_file("0", 0)
    body = bytearray((tmp_path / "state" / key).read_bytes())
    chunk = pq.ParquetFile(io.BytesIO(body)).metadata.row_group(0).column(column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    body[begin + chunk.total_compressed_size - 1] ^= 1
    (tmp_path / "state" / key).write_bytes(body)
    result = run("output", "--name", "Delays", "--container", tmp_path / "state", "--json")
    assert result.exit_code == 1
    assert key in result.stderr
    assert "Traceback" not in result.output


# dead letters


def test_dead_letters_json_has_the_public_shape(run: Run, place: list[object]) -> None:
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    assert len(letters) == 20
    letter = letters[0]
    assert letter.keys() >= {
        "partition", "sequence", "key", "value", "headers", "timestamp", "error", "attempts", "host", "epoch", "time"
    }  # fmt: skip
    assert letter["error"].keys() == {"type", "message", "traceback"}
    assert letter["error"]["type"] == "KeyError"
    assert letter["host"] == "tester"


def test_dead_letters_are_filtered_by_partition_error_and_limit(run: Run, place: list[object]) -> None:
    def found(*options: str) -> list[dict[str, Any]]:
        return lines(run("dead-letters", "list", *place, "--json", *options).stdout)

    everything = found()
    assert found("--error", "ValueError") == []
    assert found("--error", "KeyError") == everything
    assert found("--limit", "3") == everything[:3]
    partition = everything[-1]["partition"]
    assert found("--partition", partition) == [letter for letter in everything if letter["partition"] == partition]


def test_a_header_with_a_long_name_or_a_line_break_in_it_takes_one_line_and_widens_no_other(
    run: Run, tmp_path: Path
) -> None:
    async def prepare() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send(b"none", headers=[("x" * 1000, b"1"), ("a\r\nkey", b"2")])
        await Processor(
            JsonRows, name="Delays", source=str(tmp_path / "events"), container=str(tmp_path / "state"),
            options={"output_schema": "tail string"}, dead_letter_limit=1, **QUICK,
        ).run(until_end=True)  # fmt: skip

    anyio.run(prepare)
    shown = run(
        "dead-letters", "show", "0:0", "--name", "Delays", "--container", tmp_path / "state"
    ).stdout.splitlines()
    assert f"header {'x' * 1000}  1" in shown
    assert [line.split() for line in shown if "key" in line] == [["key", "-"], ["header", "a\\r\\nkey", "2"]]
    assert len(next(line for line in shown if line.startswith("key"))) < 40


def test_a_dead_letter_is_shown_whole(run: Run, place: list[object]) -> None:
    letter = lines(run("dead-letters", "list", *place, "--json").stdout)[3]
    name = f"{letter['partition']}:{letter['sequence']}"
    shown = run("dead-letters", "show", name, *place).stdout
    assert letter["value"] in shown
    assert 'float(flight["delay"])' in shown
    assert orjson.loads(run("dead-letters", "show", name, *place, "--json").stdout) == letter


@pytest.mark.parametrize(("name", "problem"), [("0:999", "no dead letter 0:999"), ("zero", "write PARTITION:SEQUENCE")])
def test_a_dead_letter_that_is_not_there_is_wrong_use(run: Run, place: list[object], name: str, problem: str) -> None:
    result = run("dead-letters", "show", name, *place)
    assert result.exit_code == 2
    assert problem in result.stderr


# doctor


def test_doctor_proves_a_folder_and_leaves_nothing_in_it(run: Run, tmp_path: Path) -> None:
    result = run("doctor", tmp_path / "place", "--json")
    assert result.exit_code == 0
    report = orjson.loads(result.stdout)
    assert report["safe"] is True
    assert all(found["held"] for found in report["properties"])
    assert {"create if absent", "stale match", "race of creates"} <= {found["name"] for found in report["properties"]}
    assert report["latency_ms"].keys() == {"get", "put", "put_if_absent", "put_if_match", "list", "delete"}
    files = [path for path in (tmp_path / "place").rglob("*") if path.is_file() and ".actorproc" not in path.parts]
    assert files == []


def test_doctor_tells_no_s3_endpoint_of_a_folder_and_no_sign_of_a_zero(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORPROC_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(doctor, "round", lambda *_: -0.0, raising=False)
    assert orjson.loads(run("doctor", tmp_path, "--json").stdout)["endpoint"] is None
    shown = run("doctor", tmp_path).stdout
    assert "127.0.0.1" not in shown
    assert "the store's is +0.0 s from" in shown


def test_doctor_fails_a_store_that_ignores_conditions(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorproc.stores.files import Files

    async def ignores(self: Files, key: str, body: bytes) -> str:
        return await self.put(key, body)

    monkeypatch.setattr(Files, "put_if_absent", ignores)
    result = run("doctor", tmp_path / "place")
    assert result.exit_code == 1
    assert "NOT safe to use: create if absent" in result.stdout


def test_doctor_tells_of_a_store_that_refuses_every_match_and_leaves_nothing_in_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorproc.errors import ConditionFailed
    from actorproc.stores.files import Files

    async def refuses(self: Files, key: str, body: bytes, tag: str) -> str:
        raise ConditionFailed(key)

    monkeypatch.setattr(Files, "put_if_match", refuses)
    monkeypatch.setenv("ACTORPROC_STORE_PATIENCE", "50ms")
    report = run("doctor", tmp_path / "place", "--json")
    assert report.exit_code == 1, report.exception
    assert orjson.loads(report.stdout)["latency_ms"] == {}
    shown = run("doctor", tmp_path / "place")
    assert "NOT safe to use: match, race of matches" in shown.stdout
    assert "latency" not in shown.stdout
    files = [path for path in (tmp_path / "place").rglob("*") if path.is_file() and ".actorproc" not in path.parts]
    assert files == []


def test_doctor_leaves_nothing_in_a_store_that_fails_while_it_is_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorproc.errors import StoreRefused
    from actorproc.stores.files import Files

    async def all_held(*_: object) -> list[object]:
        return []

    async def refuses(self: Files, key: str, **_: object) -> None:
        raise StoreRefused("AccessDenied")

    monkeypatch.setattr(doctor, "probe", all_held)
    monkeypatch.setattr(Files, "get", refuses)
    result = run("doctor", tmp_path / "place")
    assert result.exit_code != 0
    assert "AccessDenied" in result.stderr
    files = [path for path in (tmp_path / "place").rglob("*") if path.is_file() and ".actorproc" not in path.parts]
    assert files == []


def test_a_purge_says_what_brings_the_checkpoint_past_the_letters_it_kept(
    run: Run, state: Path, tmp_path: Path
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    shutil.rmtree(tmp_path / "state" / LAYOUT.checkpoints)
    result = run("dead-letters", "purge", "--name", "Delays", "--container", tmp_path / "state", "--yes")
    said = " ".join(result.stdout.split())
    assert said.startswith("0 dead letters purged 20 kept: no checkpoint has passed them yet.")
    assert "every 16 commits, and when it stops: start the processor if none runs" in said
    assert result.exit_code == 1, "what was asked for is not done"
    result = run("dead-letters", "purge", "--name", "Delays", "--container", tmp_path / "state", "--yes", "--json")
    assert (lines(result.stdout), result.exit_code) == ([{"purged": 0, "kept": 20, "held": 0}], 1)


class RepeatsWhatItCannotRead(RecordHandler):
    output_schema = "tail string"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, Any]:
        row = record.json()
        if "tail" not in row:
            raise ValueError(f"no tail in {row['text']}")
        return dict(row)


def test_what_a_record_holds_does_not_act_on_the_terminal(run: Run, tmp_path: Path) -> None:
    acting = "\x1b[2Jgone\x07 \x9b31m\x1b]0;title\x07\u202e"
    shown = "\\x1b[2Jgone\\x07 \\x9b31m\\x1b]0;title\\x07\\u202e"

    async def prepare() -> None:
        async with Producer(str(tmp_path / "events"), partitions=1) as producer:
            await producer.send_many([orjson.dumps({"tail": acting}), orjson.dumps({"text": acting})])
        await Processor(
            RepeatsWhatItCannotRead, name="Delays", source=str(tmp_path / "events"), container=str(tmp_path / "state"),
            dead_letter_limit=1, **QUICK,
        ).run(until_end=True)  # fmt: skip

    anyio.run(prepare)
    there = ["--name", "Delays", "--container", tmp_path / "state"]
    for command in (["output"], ["dead-letters", "list"], ["dead-letters", "show", "0:1"]):
        printed = run(*command, *there).stdout
        assert shown in printed, command
        assert not any(character in printed for character in "\x1b\x07\x9b\u202e"), command
    wrong = run("status", "--name", acting, "--container", tmp_path / "state")
    assert "\\x1b[2Jgone" in wrong.stderr
    assert "\x1b" not in wrong.stderr

"""`actorproc output`: its rows and their order, as JSON and as a table."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from actorproc import JsonRows, PartitionContext, Processor, Producer, Record, RecordHandler
from actorproc.output.schema_document import agree_on_schema
from actorproc.rows.output_schema import parse_schema
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.cli.conftest import QUICK, Run, processed
from tests.cli.reading import LAYOUT, lines


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
    result = run("output", *place, "--limit", "3")
    assert result.stdout.split()[:4] == ["_partition", "_sequence", "tail", "delay"]
    assert len([line for line in result.stdout.splitlines() if " N" in line]) == 3


def test_output_shows_the_20_newest_rows_by_default(run: Run, place: list[object]) -> None:
    def rows(*options: str) -> int:
        return sum(" N" in line for line in run("output", *place, *options).stdout.splitlines())

    assert (rows(), rows("--limit", "30"), rows("--all")) == (20, 30, 180)
    assert "the 20 newest rows (--limit N, --all)" in run("output", *place).stderr
    assert run("output", *place, "--all").stderr == ""
    assert "--limit and --all: choose one" in run("output", *place, "--all", "--limit", "3").stderr
    assert len(lines(run("output", *place, "--json").stdout)) == 180


def test_a_time_in_the_table_is_the_same_as_in_json(run: Run, tmp_path: Path) -> None:
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
    assert run(*command).stdout.splitlines()[-1].split() == ["0", "0", row["at"], row["local"]]


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


def test_a_limit_shows_the_newest_rows_and_opens_no_other_file(
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
    tail = lines(run("output", *place, "--json", "--limit", "30").stdout)
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


def test_rows_below_the_boundary_are_not_shown(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")

    async def raise_boundary() -> None:
        async with open_store(str(tmp_path / "state")) as store:
            await store.put(LAYOUT.boundary("2"), b'{"version":1,"lowest":1000}')

    anyio.run(raise_boundary)
    rows = lines(run("output", "--name", "Delays", "--container", tmp_path / "state", "--json").stdout)
    assert {row["_partition"] for row in rows} == {"0", "1", "3"}


def test_a_map_by_bytes_or_decimals_is_shown_and_read_again(run: Run, tmp_path: Path) -> None:
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

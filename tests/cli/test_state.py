"""`actorproc state`: keys and values, one key, an export."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec
import orjson
import pyarrow.parquet as pq
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.errors import SchemaError
from actorproc.testing import MemorySource
from tests.cli.conftest import QUICK, Run
from tests.cli.reading import lines


class Visits(PartitionHandler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            visit = record.json()
            ctx.state.set(visit["user"], {"page": visit["page"], "token": b"\xff"})
            ctx.state("pages").set(("page", visit["page"]), visit["user"], ttl=3600)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    container = tmp_path_factory.mktemp("state")
    source = MemorySource(2)
    for number, partition in enumerate(["0", "1", "0", "1"]):
        source.append(partition, [orjson.dumps({"user": f"user {number}", "page": number})])
    processor = Processor(Visits, source=source, container=str(container), **QUICK)

    async def work() -> None:
        await processor.run(until_end=True)

    anyio.run(work)
    return ["--name", "Visits", "--container", container]


def test_show_lists_keys_by_partition_state_and_key(run: Run, place: list[object]) -> None:
    found = lines(run("state", "show", *place, "--json").stdout)
    assert [(entry["partition"], entry["state"], entry["key"]) for entry in found] == [
        ("0", "", "user 0"), ("0", "", "user 2"), ("0", "pages", '["page",0]'), ("0", "pages", '["page",2]'),
        ("1", "", "user 1"), ("1", "", "user 3"), ("1", "pages", '["page",1]'), ("1", "pages", '["page",3]'),
    ]  # fmt: skip
    assert found[0]["value"] == {"page": 0, "token": "/w=="}
    assert found[0]["expires"] is None
    assert found[2]["expires"].endswith("+00:00")


def test_show_of_one_state_and_partition(run: Run, place: list[object]) -> None:
    found = lines(run("state", "show", *place, "--json", "--state", "pages", "--partition", "1", "--limit", "1").stdout)
    assert [entry["value"] for entry in found] == ["user 1"]
    table = run("state", "show", *place, "--state", "pages").stdout
    assert table.split()[:5] == ["partition", "state", "key", "value", "expires"]
    assert "no state" in run("state", "show", *place, "--state", "typo").output


@pytest.mark.parametrize(("key", "value"), [("user 1", {"page": 1, "token": "/w=="}), ('["page", 3]', "user 3")])
def test_get_finds_a_key_in_its_partition(run: Run, place: list[object], key: str, value: object) -> None:
    (entry,) = lines(run("state", "get", *place, "--json", "--key", key).stdout)
    assert (entry["partition"], entry["value"]) == ("1", value)


def test_get_says_that_no_partition_has_the_key(run: Run, place: list[object]) -> None:
    result = run("state", "get", *place, "--key", "nobody")
    assert result.exit_code == 2
    assert "no partition has the key 'nobody'" in result.stderr


def test_export_is_plain_parquet(run: Run, place: list[object], tmp_path: Path) -> None:
    result = run("state", "export", tmp_path / "state.parquet", *place, "--state", "pages")
    assert "4 keys in" in result.stderr
    table = pq.read_table(tmp_path / "state.parquet")
    assert table.column_names == ["partition", "state", "key", "value", "expires"]
    assert table["value"].to_pylist() == ['"user 0"', '"user 2"', '"user 1"', '"user 3"']


# Declared types


class Session(msgspec.Struct):
    clicks: int
    days: list[date] = []
    by_page: dict[str, int] = {}


class Sessions(PartitionHandler):
    output_schema = "user string"
    State: ClassVar[Any] = Session

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            user = record.text
            before = ctx.state.get(user)
            clicks = before.clicks if before else 0
            ctx.state.set(user, self.State(clicks + 1, [date(2026, 1, 2)], {"/": 1}))


class Later(Sessions):
    class State(Session):
        seconds: float = 0.0


class Renamed(Sessions):
    class State(msgspec.Struct):
        hits: int


class Untyped(Sessions):
    State = None


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    container = tmp_path_factory.mktemp("sessions")
    serve(Sessions, container, "a", "b", "a")
    return ["--name", "Sessions", "--container", container]


def serve(handler: type[PartitionHandler], container: object, *users: str) -> None:
    source = MemorySource(1)
    source.append("0", [user.encode() for user in users])

    async def work() -> None:
        await Processor(handler, name="Sessions", source=source, container=str(container), **QUICK).run(until_end=True)

    anyio.run(work)


def test_export_of_a_declared_state_has_typed_values(run: Run, sessions: list[object], tmp_path: Path) -> None:
    run("state", "export", tmp_path / "s.parquet", *sessions, "--state", "")
    table = pq.read_table(tmp_path / "s.parquet")
    assert table["key"].to_pylist() == ["a", "b"]
    assert table["value"].to_pylist() == [
        {"clicks": clicks, "days": [date(2026, 1, 2)], "by_page": [("/", 1)]} for clicks in (2, 1)
    ]


@pytest.mark.parametrize(
    ("handler", "code", "text"),
    [
        ("Sessions", 0, "state: as it is stored"),
        ("Later", 0, "state: changes to struct<clicks: bigint NOT NULL, days: array<date>"),
        ("Renamed", 1, "state: DOES NOT FIT"),
        ("Untyped", 0, "state: is no longer declared"),
    ],
)
def test_schema_check_lists_the_changes_of_a_handler(
    run: Run, sessions: list[object], handler: str, code: int, text: str
) -> None:
    result = run("schema", "check", f"{__name__}:{handler}", *sessions)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (code, "output: as it is stored")
    assert text in result.stdout


def test_schema_check_shows_output_and_state_that_do_not_fit(run: Run, sessions: list[object]) -> None:
    result = run("schema", "check", f"{__name__}:Both", *sessions, "--json")
    found = {finding["subject"]: finding for finding in lines(result.stdout)}
    assert "column 'user', string, is gone" in found["output"]["text"]
    assert "field 'hits' is new and has no default" in found["state"]["text"]
    assert "field 'clicks' is gone" in found["state"]["text"]


class Both(Renamed):
    output_schema = "account string"


def test_a_handler_whose_state_does_not_fit_is_not_started(sessions: list[object]) -> None:
    with pytest.raises(SchemaError, match="State does not go with the stored state: field 'clicks' is gone"):
        serve(Renamed, sessions[-1])


def test_a_field_with_a_default_may_be_added(sessions: list[object], tmp_path: Path) -> None:
    container: Any = sessions[-1]
    shutil.copytree(container, tmp_path / "copy")
    serve(Later, tmp_path / "copy", "a", "b", "a", "b")
    with pytest.raises(SchemaError, match="field 'seconds' is gone"):
        serve(Sessions, tmp_path / "copy")


def test_a_time_to_live_beyond_all_dates_that_is_stored_can_be_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions stored it."""

    class Long(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            ctx.state.set("a", 1, ttl=1e15)
            ctx.state.set("b", 2)

    source = MemorySource(1)
    source.append("0", [b"1"])
    monkeypatch.setattr("actorproc.handler.keyed_state.MOST_SECONDS", 1e16)
    anyio.run(lambda: Processor(Long, source=source, container=str(tmp_path), **QUICK).run(until_end=True))
    place = ["--name", "Long", "--container", tmp_path]
    found = lines(run("state", "show", *place, "--json").stdout)
    assert [(entry["key"], (entry["expires"] or "never")[:5]) for entry in found] == [("a", "9999-"), ("b", "never")]
    run("state", "export", *place, tmp_path / "state.parquet")
    assert [str(time)[:5] for time in pq.read_table(tmp_path / "state.parquet")["expires"].to_pylist()] == [
        "9999-",
        "None",
    ]

"""`actorproc state`: keys and values, one key, an export."""

from __future__ import annotations

from pathlib import Path

import anyio
import orjson
import pyarrow.parquet as pq
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
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

"""The Glue catalog, by a double of AWS below the unmodified client: a condition is the version of the table there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from moto import mock_aws
from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from pyiceberg.catalog.glue import GlueCatalog

from actorproc.sinks.protocol import SinkMoved
from actorproc.sinks.tables.protocol import TableChange
from tests.connectors.iceberg.catalogs import Grown, World, opened


def conditional(update: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The double would ignore the version that Glue compares."""

    def checked(self: Any) -> Any:
        given = self.parameters
        table = self.glue_backend.get_table(given["DatabaseName"], given["TableInput"]["Name"])
        if given["VersionId"] != str(table._current_version):
            raise JsonRESTError(
                "ConcurrentModificationException", "Update table failed due to concurrent modifications."
            )
        return update(self)

    return checked


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    given = {"warehouse": f"file://{tmp_path}/warehouse", "glue.region": "eu-west-1"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr(GlueResponse, "update_table", conditional(GlueResponse.update_table))
    with mock_aws():
        world = World(str(tmp_path / "state"), "glue", given)
        yield world
        world.close()


async def test_glue_gets_rows_compaction_and_new_columns(world: World) -> None:
    await world.process(80)
    assert world.is_exact()
    assert await world.compact() == 2
    await world.process(40, Grown)
    assert world.is_exact()
    assert await world.damages() == []


async def test_glue_refuses_the_second_of_two_transactions(world: World) -> None:
    await world.process(20)
    sinks = [(await opened(world))[0] for _ in range(2)]
    for _ in range(3):
        seen = [await sink.load() for sink in sinks]
        await sinks[0].commit(seen[0], TableChange(1))
        with pytest.raises(SinkMoved):
            await sinks[1].commit(seen[1], TableChange(1))
        sinks.reverse()
    for sink in sinks:
        await sink.close()
    assert world.is_exact()


async def test_a_transaction_that_another_one_overtakes_in_glue_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have passed the check of the snapshot. What counts then is the version of the table in Glue."""
    await world.process(20)
    (one, _), (other, _) = await opened(world), await opened(world)
    late, early = await one.load(), await other.load()
    real, overtaken = GlueCatalog._update_glue_table, list[int]()

    def update(self: GlueCatalog, *given: Any, **named: Any) -> None:
        if not overtaken:
            overtaken.append(1)
            other._commit(early, TableChange(1))  # type: ignore[arg-type]
        real(self, *given, **named)

    monkeypatch.setattr(GlueCatalog, "_update_glue_table", update)
    with pytest.raises(SinkMoved, match="concurrent update"):
        await one.commit(late, TableChange(1))
    assert (await one.load()).count == late.count + 1
    assert world.is_exact()


async def test_a_reply_of_glue_that_is_lost_doubles_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The AWS client sends the request again, and is refused, since its own first one has landed."""
    await world.process(20)
    real, lost = GlueResponse.update_table, [1]

    def update(self: Any) -> Any:
        done = real(self)
        if lost:
            lost.pop()
            raise ConnectionClosedError(endpoint_url="https://glue")
        return done

    monkeypatch.setattr(GlueResponse, "update_table", update)
    await world.process(40)
    assert lost == []
    assert world.is_exact()
    table = world.table()
    assert all(table.io.new_input(snapshot.manifest_list).exists() for snapshot in table.metadata.snapshots)

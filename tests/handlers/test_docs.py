"""docs/handlers.md: its examples run, on flights as it shows them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from actorproc import Batch, PartitionContext, Record
from actorproc.handler.base import CloseReason, PartitionHandler
from actorproc.handler.info import PartitionInfo
from actorproc.handler.options import load_options
from tests.handlers.running import run

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FLIGHT = orjson.loads(re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0])
VALUES = [orjson.dumps(FLIGHT), orjson.dumps(FLIGHT | {"dep_delay": 20}), orjson.dumps(FLIGHT | {"dep_delay": None})]

ROWS: dict[str, list[dict[str, Any]]] = {
    "Flights": [{"carrier": "UA", "dep_delay": delay} for delay in (2, 20, None)],
    "Delays": [{"carrier": "UA", "minutes": minutes} for minutes in (2, 20)],
    "TypedDelays": [{"carrier": "UA", "minutes": minutes} for minutes in (2, 20)],
    "LateFlights": [{"tail": "N14228", "minutes": 20}],
    "Sizes": [{"bytes": len(value)} for value in VALUES],
    "PerKey": [{"model": "737"}] * 3,
    "Pooled": [{"tail": "N14228"}] * 3,
    "InTime": [{"tail": "N14228"}] * 3,
    "Careful": [{"carrier": "UA"}] * 3,
    "Late": [{"tail": "N14228"}],
    "Enriched": [{"tail": "N14228", "seen": 0}] * 3,
    "RunningTotals": [{"tail": "N14228", "total": total} for total in (2, 22, 22)],
    "Acknowledging": [{"value": value.decode()} for value in VALUES],
    "Tails": [{"tail": "N14228"}] * 3,
}


async def _nothing_to_commit() -> None:
    pass


def executed(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block, "docs/handlers.md", "exec"), names)
    return names


def handlers() -> dict[str, type[PartitionHandler]]:
    found: dict[str, type[PartitionHandler]] = {}
    for block in BLOCKS:
        classes = {name: value for name, value in executed(block).items() if isinstance(value, type)}
        found |= {name: c for name, c in classes.items() if c.__module__ == "docs" and issubclass(c, PartitionHandler)}
    return found


def test_every_example_is_run() -> None:
    assert handlers().keys() == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
async def test_an_example_gives_the_rows_of_the_page(name: str, tmp_path: Path) -> None:
    handler = handlers()[name]()
    options: dict[str, object] = {}
    site = PartitionInfo("p", "h", "0", 1, options=load_options(type(handler), options, environment={}), log=_Silent())
    await handler.opened(site)
    result = await run(handler, VALUES, options=options)
    await handler.closing(replace(site, _commit=_nothing_to_commit), CloseReason.STOPPING)
    assert result.letters == {}
    shown = [{column: row[column] for column in ROWS[name][0]} for row in result.rows]
    assert shown == ROWS[name]


async def test_the_keys_example_asks_once_per_key() -> None:
    asked: list[bytes | None] = []

    class Asking(handlers()["PerKey"]):  # type: ignore[misc]
        async def model_of(self, key: bytes | None) -> str:
            asked.append(key)
            if key == b"b":
                raise LookupError("unknown")
            return str(key)

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await super().process(batch, ctx)
            assert await ctx.map([record for record in batch if record.key == b"a"], self.sequence_of) in ([0, 2], [])

        async def sequence_of(self, record: Record) -> int:
            return record.sequence

    result = await run(Asking, Batch.of("0", [b""] * 4, range(4), keys=[b"a", b"b", b"a", b"b"]))
    assert set(asked[:2]) == {b"a", b"b"}
    assert [row["_sequence"] for row in result.rows] == [0, 2]
    assert result.letters.keys() == {1, 3}


async def test_the_example_of_a_test_passes() -> None:
    (block,) = [block for block in BLOCKS if "async def test_tails" in block]
    await executed(block)["test_tails"]()


class _Silent:
    def info(self, event: str, **values: object) -> None:
        assert values == {"seen": 3, "reason": "stopping"}

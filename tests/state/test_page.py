"""The examples of the page docs/state.md give the results that it shows."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from actorproc import Batch
from actorproc.testing import run_handler

PAGE = Path(__file__).parents[2] / "docs" / "state.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_first_handler_and_its_test() -> None:
    handler, test = BLOCKS[:2]
    names: dict[str, Any] = {"__name__": "totals"}
    exec(compile(handler + test, "docs/state.md", "exec"), names)
    assert names["result"].state == {"a": 17}


def test_the_handler_with_a_timer_and_its_test() -> None:
    names: dict[str, Any] = {"__name__": "visits", "asyncio": asyncio, "run_handler": run_handler}
    exec(compile(BLOCKS[3] + BLOCKS[4], "docs/state.md", "exec"), names)
    assert len(names["result"].rows) == 1


async def test_the_handler_of_sequences() -> None:
    names: dict[str, Any] = {"__name__": "orders"}
    exec(compile(BLOCKS[5], "docs/state.md", "exec"), names)
    steps = [{"step": "opened"}, {"step": "added", "cents": 5}, {"step": "paid"}, {"step": "opened"}]
    values = [orjson.dumps(step) for step in steps]
    records = Batch.of("0", values, range(4), keys=[b"a"] * 4, timestamps=[datetime(2026, 1, 1, tzinfo=UTC)] * 4)
    result = await run_handler(names["Orders"], list(records), advance="1h")
    assert [(row["account"], row["steps"], row["cents"]) for row in result.rows] == [("a", 3, 5)]
    assert [letter["error"]["type"] for letter in result.dead_letters] == ["IncompleteSequence"]


async def test_the_typed_handler() -> None:
    names: dict[str, Any] = {"__name__": "sessions"}
    exec(compile(BLOCKS[2], "docs/state.md", "exec"), names)
    clicks = [orjson.dumps({"user": user, "page": page}) for user, page in [("a", "/"), ("b", "/"), ("a", "/cart")]]
    result = await run_handler(names["Clicks"], clicks)
    assert [row["clicks"] for row in result.rows] == [1, 1, 2]
    assert result.state["a"] == {"clicks": 2, "pages": ["/", "/cart"]}


async def test_a_handler_begins_with_the_given_states() -> None:
    names: dict[str, Any] = {"__name__": "totals"}
    exec(compile(BLOCKS[0], "docs/state.md", "exec"), names)
    result = await run_handler(names["Totals"], [], state={"a": 1}, states={"other": {("b", 2): [3]}})
    assert result.states == {"": {"a": 1}, "other": {("b", 2): [3]}}


async def test_the_handler_in_columns() -> None:
    names: dict[str, Any] = {"__name__": "columns"}
    exec(compile(BLOCKS[6], "docs/state.md", "exec"), names)
    payments = [orjson.dumps({"account": account, "paid": paid}) for account, paid in [("a", 5), ("b", 1), ("a", 2)]]
    result = await run_handler(names["Spending"], payments, state={"a": {"cents": 10}})
    assert result.state == {"a": {"cents": 17}, "b": {"cents": 1}}

"""A dead letter as a test: with its batch, options, epoch and state."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from pydantic import BaseModel

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin import letter_test as letter_test_module
from actorproc.admin.dead_letters import DeadLetters, LetterId
from actorproc.admin.letter_test import TestOptions, letter_test
from actorproc.state.reading import read_state
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import MemorySource
from tests.processor.doubling import QUICK

POISON = b'\xff "poison"'
HOW = TestOptions(
    handler=f"{__name__}:Counting", options={"limit": 3}, variables={"secret": "SECRET_OF_COUNTING"},
    settings={"commit_interval": "1s"},
)  # fmt: skip


class Options(BaseModel):
    limit: int = 0
    secret: str = ""


class Counting(PartitionHandler):
    Options = Options

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            if record.value == POISON:
                raise ValueError("a poison\nof two lines")
            ctx.state.set(record.key or b"", {"n": ctx.options.limit})


@pytest.fixture
async def written(monkeypatch: pytest.MonkeyPatch) -> str:
    """The test of a letter that a real processor wrote."""
    return await _written()


async def _written() -> str:
    source, store = MemorySource(step=10), Store(MemoryStore())
    source.append("0", [b"good"] * 4, key=b"a")
    source.append("0", [POISON], key=b"\xfe", headers=[("trace", b"\xfd")])
    source.append("0", [b"good"], key=b"b")
    processor = Processor(Counting, source=source, container=store, options={"limit": 3}, **QUICK, dead_letter_limit=1)
    await processor.run(until_end=True)
    letter = await (await DeadLetters.opened(store, processor.layout)).find(LetterId("0", 40))
    return letter_test(letter, HOW, await read_state(store, processor.layout, "0"))


def _run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "test_letter.py", "exec"), names)
    return names


def test_it_has_the_record_with_its_place_and_bytes(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_COUNTING", "s3cr3t")
    names = _run(written)
    (record,) = names["BATCH"]
    assert (record.partition, record.sequence, record.key, record.value) == ("0", 40, b"\xfe", POISON)
    assert record.headers == (("trace", b"\xfd"),)
    assert record.timestamp is not None


def test_it_has_options_settings_epoch_and_state(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_COUNTING", "s3cr3t")
    names = _run(written)
    assert names["OPTIONS"] == {"limit": 3, "secret": "s3cr3t"}
    assert "s3cr3t" not in written
    assert (names["SETTINGS"].max_attempts, names["SETTINGS"].commit_interval) == (1, 1.0)
    assert names["STATES"] == {"": {b"a": {"n": 3}, b"b": {"n": 3}}}
    assert "epoch=1" in written


def test_it_raises_the_error_of_the_letter(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_COUNTING", "s3cr3t")
    with pytest.raises(ValueError, match="a poison\nof two lines"):
        _run(written)["test_letter"]()


async def test_a_large_state_is_cut_to_the_keys_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_test_module, "MOST_KEYS", 1)
    source = await _written()
    assert "STATES = {}" in source
    assert "more than 1 keys" in source


CODE = '"""\n\'\'\'\n{0}) or __import__("os").abort()\n#\\'


def test_no_text_of_a_letter_becomes_code() -> None:
    record: dict[str, Any] = {"value": CODE, "key": CODE, "headers": [{"key": CODE, "value": CODE}], "timestamp": CODE}
    record = {**record, "sequence": CODE, "encoding": None, "key_encoding": None}
    letter = {**record, "partition": CODE, "epoch": CODE, "error": {"type": CODE, "message": CODE}, "earlier": [record]}
    written = letter_test(letter, HOW, None)
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Call)}
    assert called == {
        "Batch.of", "datetime.datetime.fromisoformat", "Settings.load", "run_handler", "anyio.run",
    }  # fmt: skip

"""A dead letter as a test: with its batch, options, epoch and state."""

from __future__ import annotations

import ast
import base64
import math
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from actorproc import Batch, PartitionContext, PartitionHandler, Processor
from actorproc.admin import debug_script as debug_script_module
from actorproc.admin.dead_letters import DeadLetters, LetterId
from actorproc.admin.debug_script import ScriptOptions, debug_script
from actorproc.state.reading import CommittedState, read_state
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from actorproc.testing import MemorySource
from tests.processor.doubling import QUICK

POISON = b'\xff "poison"'
HOW = ScriptOptions(
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
    return debug_script(letter, HOW, await read_state(store, processor.layout, "0"))


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
    monkeypatch.setattr(debug_script_module, "MOST_KEYS", 1)
    source = await _written()
    assert "STATES = {}" in source
    assert "more than 1 keys" in source


CODE = '"""\n\'\'\'\n{0}) or __import__("os").abort()\n#\\'


def test_no_text_of_a_letter_becomes_code() -> None:
    record: dict[str, Any] = {"value": CODE, "key": CODE, "headers": [{"key": CODE, "value": CODE}], "timestamp": CODE}
    record = {**record, "sequence": CODE, "encoding": None, "key_encoding": None}
    letter = {**record, "partition": CODE, "epoch": CODE, "error": {"type": CODE, "message": CODE}, "earlier": [record]}
    written = debug_script(letter, HOW, None)
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Call)}
    assert called == {
        "Batch.of", "datetime.datetime.fromisoformat", "Settings.load", "run_handler", "anyio.run",
    }  # fmt: skip


ODD = [
    "", "\0", "\\", '"""', "'''", '\\"""', "a\nb", "a\r\fb\x85\u2028c", "\udc80", "\ud83d", "\u202e", "{title}", "{0}",
    "%s", "\\N{x}", "\\x", "#", "\t", "é😀", "'", "x" * 3000, "\x1b[2J", '"', "\\u", "\ufeff",
]  # fmt: skip


def odd_letter(random: Random) -> dict[str, Any]:
    def text(signs: Sequence[str] = [sign for sign in ODD if not "\ud800" <= sign < "\ue000"]) -> str:
        return "".join(random.choices(signs, k=random.randrange(4)))

    def record() -> dict[str, Any]:
        encoding = random.choice(["base64", None])
        value = base64.b64encode(random.randbytes(9)).decode() if encoding else text()
        return {
            "sequence": random.randrange(9), "value": value, "encoding": encoding, "key": text(),
            "timestamp": random.choice([None, "2026-01-01T00:00:00+00:00"]),
            "headers": [{"key": text(), "value": text(), "encoding": None}],
        }  # fmt: skip

    error = {"type": text(ODD), "message": text(ODD)}
    return {**record(), "partition": text(), "epoch": 1, "error": error, "earlier": [record()] * random.randrange(2)}


@pytest.mark.parametrize("seed", range(60))
def test_any_letter_is_written_as_a_file_that_runs(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    letter = odd_letter(random)
    options = {
        text: random.choice([math.inf, -math.inf, math.nan, text, [text, {text: None}], date(2026, 1, 1)])
        for text in random.choices(ODD, k=3)
    }
    values = [
        *(msgspec.msgpack.encode(text.encode("utf-8", "replace")) for text in ODD[:3]),
        msgspec.msgpack.encode(math.nan),
    ]
    values.append(b"\x91" * random.choice([50, 90, 150, 900]) + b"\xc0")
    names = {"": {msgspec.msgpack.encode(number): value for number, value in enumerate(values)}}
    state = CommittedState("0", 3, {random.choice(["", "\0", '"""']): names[""]}, {})
    how = ScriptOptions(handler=HOW.handler, options=options, config=random.choice([None, 'a"\n\\.toml']))
    file = tmp_path / "test_letter.py"
    written = debug_script(letter, how, state)
    file.write_text(written, encoding="utf-8")
    module = ast.parse(file.read_bytes())
    assert repr(_run_assignment(module, "OPTIONS")) == repr(options)
    batch = _run_assignment(module, "BATCH")
    assert [record.headers[0][0] for record in batch] == [
        each["headers"][0]["key"] for each in [*letter["earlier"], letter]
    ]
    _run_assignment(module, "STATES")


def _run_assignment(module: ast.Module, name: str) -> Any:
    """Its value, without the settings, which may name a file that does not exist."""

    def is_wanted(line: ast.stmt) -> bool:
        imports = isinstance(line, ast.Import | ast.ImportFrom)
        return imports or (
            isinstance(line, ast.Assign) and isinstance(at := line.targets[0], ast.Name) and at.id == name
        )

    wanted = [line for line in module.body if is_wanted(line)]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), "test_letter.py", "exec"), names)
    return names[name]


@pytest.mark.parametrize("module", ["my-app", "class", "a.b-c", "import.x", "1st"])
def test_a_module_with_any_name_is_imported(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType(module)
    made.__dict__["Outer"] = type("Outer", (), {"Counting": Counting})
    for name in (module, module.partition(".")[0]):
        monkeypatch.setitem(sys.modules, name, made)
    letter = odd_letter(Random(0))
    assert (
        _run(debug_script(letter, ScriptOptions(handler=f"{module}:Outer.Counting"), None))["Outer"].Counting
        is Counting
    )


def test_a_number_that_is_a_program_is_not_run() -> None:
    letter = {**odd_letter(Random(0)), "epoch": "__import__('os').abort()", "sequence": "__import__('os').abort()"}
    with pytest.raises((TypeError, ValueError)):
        _run(debug_script(letter, HOW, None))

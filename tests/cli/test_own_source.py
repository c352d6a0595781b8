"""`--source MODULE:NAME`: a source of the user's, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.conftest import Run

APP = """
from actorproc import PartitionHandler
from actorproc.testing.memory_source import MemorySource

class Lengths(PartitionHandler):
    output_schema = "length int"

    async def process(self, batch, ctx):
        for record in batch:
            ctx.emit(record, {"length": len(record.value)})

class Lost(Lengths):
    async def process(self, batch, ctx):
        for record in batch:
            ctx.dead_letter(record, "no use")

def three():
    source = MemorySource(2)
    source.append("0", [b"a", b"bb"])
    source.append("1", [b"ccc"])
    return source

number = 3

def failing():
    raise OSError("no table")

class Closed(MemorySource):
    def __init__(self):
        super().__init__(2)

    async def open(self):
        raise OSError("no route")

class Opened(Closed):
    async def open(self):
        pass

class Listless(Opened):
    async def partitions(self):
        raise ConnectionError("db is down")

class Plain(Opened):
    def partitions(self):
        return ["0"]

class Numbers(Opened):
    async def partitions(self):
        return [0, 1]

class Endless(Opened):
    async def end(self, partition):
        raise OSError("no end")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_source_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def serve(run: Run, source: str) -> Any:
    quick = ["--until-end", "--set", "restart_backoff=1ms"]
    return run("serve", "own_source_app:Lengths", "--source", source, "--container", "state", *quick)


@pytest.mark.parametrize("source", [".", "./", "/", "file://."])
def test_a_source_without_a_name_is_a_place_like_others(app: Path, run: Run, source: str) -> None:
    result = serve(run, source)
    assert result.exit_code == 2
    assert "neither may be, or lie in, the other" in result.stderr


def test_a_function_that_makes_a_source_is_one(app: Path, run: Run) -> None:
    assert serve(run, "own_source_app:three").exit_code == 0
    printed = run("output", "--name", "Lengths", "--container", "state", "--json").stdout
    rows = [orjson.loads(line) for line in printed.splitlines()]
    assert [(row["_partition"], row["_sequence"], row["length"]) for row in rows] == [
        ("0", 0, 1),
        ("0", 1, 2),
        ("1", 0, 3),
    ]


def test_a_run_with_only_dead_letters_ends_with_a_warning(app: Path, run: Run) -> None:
    place = ["--source", "own_source_app:three", "--container", "state", "--until-end"]
    lost = run("serve", "own_source_app:Lost", *place)
    assert lost.exit_code == 0, lost.output
    assert "3 dead letters committed" in lost.stdout
    assert "every record that" in lost.stderr
    assert "does the handler fit the source?" in lost.stderr
    for handler in ("Lost", "Lengths"):  # nothing is left to do, and every record has a row
        assert "warning" not in run("serve", f"own_source_app:{handler}", *place).stderr


@pytest.mark.parametrize(
    ("source", "message", "code"),
    [
        ("own_source_app:four", "has no 'four'", 2),
        ("json:four", "/json/__init__.py) has no 'four'", 2),
        ("own_source_app:number", "is of class builtins.int; it must be, or make, an actorproc.Source", 2),
        ("no_such_module:three", "there is no module 'no_such_module'", 2),
        (
            "own_source_app:failing",
            "making the source 'own_source_app:failing' failed: OSError: no table (in failing",
            2,
        ),
        ("own_source_app:Closed", "open() of the source Closed failed: OSError: no route (in Closed.open, ", 1),
        (
            "own_source_app:Listless",
            "partitions() of the source Listless failed: ConnectionError: db is down (in Listless.p",
            1,
        ),
        ("own_source_app:Plain", "partitions() of the source Plain failed: TypeError: object list can't be used in", 1),
        ("own_source_app:Numbers", "source Numbers returned [0, 1]; expected a list of names, each a str", 1),
        ("own_source_app:Endless", "end() of the source Endless failed: OSError: no end (in Endless.end, ", 1),
    ],
)
def test_an_unusable_source_is_an_error_without_a_traceback(
    app: Path, run: Run, source: str, message: str, code: int
) -> None:
    result = serve(run, source)
    assert message in result.stderr
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_status_refuses_another_source(app: Path, run: Run) -> None:
    place = ["status", "--name", "Lengths", "--container", "state"]
    assert serve(run, "own_source_app:three").exit_code == 0
    assert run(*place, "--source", "own_source_app:three").exit_code == 0
    result = run(*place, "--source", "own_source_app:Opened")
    assert result.exit_code == 2
    assert "Lengths in file://" in result.stderr
    assert "belongs to another stream" in result.stderr
    replay = run("dead-letters", "replay", "--name", "Lengths", "--container", "state")
    assert replay.exit_code == 2
    assert (
        "Lengths reads MemorySource: dead letters are appended to a log, a topic, a hub, a stream of Kinesis or a "
        "queue, and this is a source that is only read" in replay.stderr
    )
    result = run(*place, "--source", "own_source_app:Closed")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "open() of the source Closed failed" in result.stderr

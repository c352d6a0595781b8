"""Corrupt files: commands name the file and a remedy."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import anyio
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc.errors import CorruptObject
from actorproc.sources import OutputSource
from actorproc.storage.parquet import write_parquet
from actorproc.stores import open_store
from tests.cli.conftest import Run
from tests.cli.reading import LAYOUT


def damaged(run: Run, *arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    said = result.stderr.removesuffix("\n")
    assert said.isprintable(), "one line, without what is in the file"
    assert "restore it from a backup" in said
    return str(said)


def test_a_corrupt_file_is_one_error_line_with_a_remedy(run: Run, state: Path, tmp_path: Path) -> None:
    place, source = tmp_path / "state", tmp_path / "events"
    shutil.copytree(state / "state", place)
    shutil.copytree(state / "events", source)
    given = ["--name", "Delays", "--container", place]
    replay = ["dead-letters", "replay", *given, "--source", source]

    key = LAYOUT.dead_letter_file("0", 0)
    (place / key).write_bytes(b"{\n\x00\n")
    for command in (["dead-letters", "list", *given], replay):
        said = damaged(run, *command)
        assert said.startswith(f"error: file://{place}/{key}: is not a valid file of dead letters")
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
        assert damaged(run, *command).startswith(
            f"error: file://{source}/log.json: is not a valid LogMetadata document"
        )

    (place / LAYOUT.group).write_bytes(b"{")
    assert damaged(run, "status", *given).startswith(f"error: file://{place}/Delays/group.json: is not a valid ")


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
def test_a_checkpoint_with_a_wrong_type_is_named(
    run: Run, state: Path, tmp_path: Path, path: list[str], value: object, commands: list[str]
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    key = LAYOUT.checkpoint("0")
    edit(tmp_path / "state" / key, path, value)
    given = ["--name", "Delays", "--container", tmp_path / "state"]
    for command in commands:
        result = run(*(["dead-letters", "purge", "--yes"] if command == "purge" else [command]), *given)
        assert f"{key}: is not a valid Checkpoint document (Expected " in result.output
        assert f"at `$.{'.'.join(path)}`" in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["time"], None, "got `null` - at `$.time`"),
        (["time"], "soon", "Invalid RFC3339 encoded datetime"),
        (["time"], "2013-01-01T00:00:00", "Expected `datetime` with a timezone"),
        (["value"], {}, "Expected `str | null`, got `object` - at `$.value`"),
        (["sequence"], "7", "Expected `int`, got `str` - at `$.sequence`"),
        (["error", "message"], 5, "Expected `str`, got `int` - at `$.error.message`"),
        (["headers"], [{}], "missing required field `key` - at `$.headers[0]`"),
    ],
)
def test_a_dead_letter_with_a_wrong_type_is_named(
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
        assert said.startswith(f"error: file://{place}/{key}: is not a valid file of dead letters (")
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


async def test_an_output_file_with_invalid_text_is_named(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    key = LAYOUT.output_file("0", 0)
    path = tmp_path / "state" / key
    file = pq.ParquetFile(path)
    table = file.read()
    footer = {"actorproc.commit": file.metadata.metadata[b"actorproc.commit"].decode()}
    none = pa.array([b"\xff"] * len(table), pa.binary()).view(pa.string())
    path.write_bytes(write_parquet(table.set_column(0, table.field(0), none), footer))
    command = ["output", "--name", "Delays", "--container", tmp_path / "state", "--all"]
    result = await anyio.to_thread.run_sync(run, *command)
    assert result.exit_code == 1
    assert f"{key}: cannot be read" in result.stderr
    assert "Traceback" not in result.output
    async with open_store(str(tmp_path / "state")) as store:
        with pytest.raises(CorruptObject, match=rf"{key}: cannot be read"):
            await anext(OutputSource(store, "Delays").read("0", "0+0"))


@pytest.mark.parametrize("column", range(3))
def test_a_changed_byte_in_an_output_file_is_noticed(run: Run, state: Path, tmp_path: Path, column: int) -> None:
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

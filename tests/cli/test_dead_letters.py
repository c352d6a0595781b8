"""`actorproc dead-letters list` and `show`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from actorproc import PartitionContext, Processor, Record, RecordHandler
from actorproc.testing.memory_source import MemorySource
from tests.cli.conftest import QUICK, Run
from tests.cli.reading import lines


def test_dead_letters_json_has_the_public_shape(run: Run, place: list[object]) -> None:
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    assert len(letters) == 20
    letter = letters[0]
    assert (letter["id"], letter["kind"]) == (f"{letter['partition']}:{letter['sequence']}", "KeyError")
    assert letter.keys() >= {
        "partition", "sequence", "key", "value", "headers", "timestamp", "error", "attempts", "host", "epoch", "time"
    }  # fmt: skip
    assert letter["error"].keys() == {"type", "message", "traceback"}
    assert letter["error"]["type"] == "KeyError"
    assert letter["host"] == "tester"


def test_dead_letters_are_filtered_by_partition_kind_and_limit(run: Run, place: list[object]) -> None:
    def found(*options: str) -> list[dict[str, Any]]:
        return lines(run("dead-letters", "list", *place, "--json", *options).stdout)

    everything = found()
    assert found("--kind", "ValueError") == []
    assert found("--kind", "KeyError") == everything
    assert found("--limit", "3") == everything[:3]
    partition = everything[-1]["partition"]
    assert found("--partition", partition) == [letter for letter in everything if letter["partition"] == partition]


@pytest.mark.parametrize("options", [(), ("--kind", "KeyError")])
def test_a_list_cut_by_a_limit_says_so(run: Run, place: list[object], options: tuple[str, ...]) -> None:
    more = "these are the first 19 (--limit)"
    assert more in run("dead-letters", "list", *place, "--limit", "19", *options).stdout
    assert "(--limit)" not in run("dead-letters", "list", *place, "--limit", "21", *options).stdout


def test_a_dead_letter_is_shown_whole(run: Run, place: list[object]) -> None:
    letter = lines(run("dead-letters", "list", *place, "--json").stdout)[3]
    name = letter["id"]
    shown = run("dead-letters", "show", name, *place).stdout
    assert letter["value"] in shown
    assert 'float(flight["delay"])' in shown
    assert orjson.loads(run("dead-letters", "show", name, *place, "--json").stdout) == letter


def test_a_long_reason_is_cut_in_the_list_and_whole_elsewhere(run: Run, tmp_path: Path) -> None:
    reason = f"{'a long reason ' * 30}ends here"

    class Fails(RecordHandler):
        output_schema = "n long"

        def process_record(self, record: Record, ctx: PartitionContext) -> None:
            raise ValueError(reason)

    source, container = MemorySource(1), str(tmp_path / "state")
    source.append("0", [b"1"])
    anyio.run(partial(Processor(Fails, source=source, container=container, **QUICK).run, until_end=True))
    where = ("--name", "Fails", "--container", container)
    table = run("dead-letters", "list", *where).stdout
    assert reason[:90] in table
    assert max(map(len, table.splitlines())) < 200
    assert reason in run("dead-letters", "show", "0:0", *where).stdout
    assert lines(run("dead-letters", "list", *where, "--json").stdout)[0]["error"]["message"] == reason


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("0:999", "no dead letter 0:999"),
        ("zero", "write PARTITION:SEQUENCE"),
        ("0:" + "1" * 5_000, "write PARTITION:SEQUENCE"),
    ],
)
def test_an_unknown_dead_letter_is_wrong_use(run: Run, place: list[object], name: str, problem: str) -> None:
    result = run("dead-letters", "show", name, *place)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_an_unknown_kind_lists_the_known_kinds(run: Run, place: list[object]) -> None:
    result = run("dead-letters", "list", *place, "--kind", "KeyErr", "--json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no dead letter of kind 'KeyErr'; there are: KeyError (20)\n"
    assert run("dead-letters", "list", *place, "--kind", "KeyErr").stdout == ""
    assert run("dead-letters", "list", *place, "--kind", "KeyError", "--json").stderr == ""


def test_replayed_and_not_replayed_exclude_each_other(run: Run, place: list[object]) -> None:
    result = run("dead-letters", "list", *place, "--replayed", "--not-replayed")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--replayed and --not-replayed: choose one" in result.stderr


@pytest.mark.parametrize("command", ["list", "replay", "purge"])
def test_an_unknown_partition_is_refused(run: Run, state: Path, place: list[object], command: str) -> None:
    source = ["--source", state / "events"] if command == "replay" else []
    result = run("dead-letters", command, *place, *source, "--partition", "77")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no partition '77'; there are: 0, 1, 2, 3" in result.stderr

"""`actorproc dead-letters replay` and `purge`: the letters they take and those that stay."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actorproc.admin.replay_target import LogTarget
from actorproc.sources.replay_target import Outcome
from tests.cli.conftest import Run
from tests.cli.reading import LAYOUT, lines


def test_letters_can_be_replayed_into_a_log_of_their_own(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    log, place = tmp_path / "letters", ["--name", "Delays", "--container", tmp_path / "state"]
    replay = ["dead-letters", "replay", *place, "--into", log]
    assert run(*replay).exit_code == 2, "there is no such log"
    assert run("logs", "create", log, "--partitions", 2).exit_code == 0
    result = run(*replay)
    assert (result.exit_code, result.stdout) == (0, f"20 dead letters appended to {log}\n")
    assert "0 dead letters appended" in run(*replay).stdout
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    records = lines(run("peek", "--source", log, "--limit", 20, "--json").stdout)
    assert sorted(record["value"] for record in records) == sorted(letter["value"] for letter in letters)
    partitions = {(record["key"], record["partition"]) for record in records}
    assert len(partitions) == len(dict(partitions)), "a key is in one partition"


def test_a_replay_that_fails_midway_is_in_the_audit(run: Run, state: Path, tmp_path: Path) -> None:
    for part in ("state", "events"):
        shutil.copytree(state / part, tmp_path / part)
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    first, *_, last = sorted((tmp_path / "state" / LAYOUT.dead_letters).rglob("*.jsonl"))
    count = len(lines(first.read_text()))
    last.write_text("{}\n")
    result = run("dead-letters", "replay", *place, "--source", tmp_path / "events")
    assert result.exit_code != 0
    (act,) = lines(run("audit", *place, "--json").stdout)
    said = f"dead letters appended to {tmp_path / 'events'}: "
    assert act["effect"].startswith(said)
    appended = int(act["effect"].removeprefix(said))
    assert count <= appended < 20
    assert f"{appended} dead letters appended before the error\nerror: " in result.stderr


def test_letters_are_replayed_only_into_appendable_targets(
    run: Run, state: Path, place: list[object], tmp_path: Path
) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    result = run("dead-letters", "replay", *place, "--source", "mysrc:Lines")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a stream of Kinesis or a queue, and this is a source that is only read" in result.stderr
    (tmp_path / "state" / LAYOUT.origin).unlink()
    result = run("dead-letters", "replay", "--name", "Delays", "--container", tmp_path / "state")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "does not say what Delays reads: give the stream with --source" in result.stderr
    told = run("dead-letters", "replay", "--help").stdout
    assert "The stream that receives the letters" in told
    assert "MODULE:NAME" not in told


def test_a_purge_holds_letters_that_share_a_commit_with_others(run: Run, state: Path, tmp_path: Path) -> None:
    for part in ("state", "events"):
        shutil.copytree(state / part, tmp_path / part)
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    purge = ["dead-letters", "purge", *place, "--yes"]
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    first = f"{letters[0]['partition']}:{letters[0]['sequence']}"
    beside = sum(letter["partition"] == letters[0]["partition"] for letter in letters) - 1  # one commit in each
    assert run("dead-letters", "replay", *place, "--source", tmp_path / "events", first).exit_code == 0
    held_text = f"1 held: a commit is purged as a whole, and they share one with {beside} letters not chosen"
    assert run(*purge, "--replayed").stdout == f"0 dead letters purged\n{held_text}\n"
    assert held_text in run(*purge, first).stdout
    held = run(*purge, "--replayed", "--json")
    assert (lines(held.stdout), held.exit_code) == ([{"purged": 0, "kept": 0, "held": 1}], 0), (
        "nothing is to be done yet"
    )


def test_dead_letters_are_replayed_by_id_or_by_kind(run: Run, state: Path, tmp_path: Path) -> None:
    for part in ("state", "events"):
        shutil.copytree(state / part, tmp_path / part)
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    replay = ["dead-letters", "replay", *place, "--source", tmp_path / "events"]
    first, second, *_ = (
        f"{letter['partition']}:{letter['sequence']}"
        for letter in lines(run("dead-letters", "list", *place, "--json").stdout)
    )
    assert "1 dead letter appended to" in run(*replay, second).stdout
    assert lines(run(*replay, first, second, second, "--json").stdout) == [
        {"replayed": 1, "replayed_before": 1, "refused": {}}
    ]
    listed = lines(run("dead-letters", "list", *place, "--replayed", "--json").stdout)
    assert {f"{letter['partition']}:{letter['sequence']}" for letter in listed} == {first, second}
    purged = run("dead-letters", "purge", *place, "--replayed", "--yes", "--json")
    assert lines(purged.stdout) == [{"purged": 0, "kept": 0, "held": 2}], (
        "others that were committed with them are left"
    )
    assert "replayed" in run("dead-letters", "show", first, *place).stdout

    none = run(*replay, "--kind", "KeyErr", "--json")
    assert lines(none.stdout) == [{"replayed": 0, "replayed_before": 0, "refused": {}}]
    assert none.stderr == "no dead letter of kind 'KeyErr'; there are: KeyError (20)\n"
    assert none.exit_code == 1, "nothing was done of what was asked for"
    assert lines(run(*replay, "--kind", "KeyError", "--json").stdout) == [
        {"replayed": 18, "replayed_before": 2, "refused": {}}
    ]
    for wrong, says in (("0:999999", "no dead letter 0:999999"), ("0", "write PARTITION:SEQUENCE")):
        result = run(*replay, first, wrong)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
    assert (
        "give ids of letters, or --partition and --kind; not both" in run(*replay, first, "--kind", "KeyError").stderr
    )


def test_a_purge_keeps_letters_that_no_checkpoint_has_passed(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    shutil.rmtree(tmp_path / "state" / LAYOUT.checkpoints)
    result = run("dead-letters", "purge", "--name", "Delays", "--container", tmp_path / "state", "--yes")
    assert "20 kept: no checkpoint has passed them. Start the processor, or stop it" in result.stdout
    assert result.exit_code == 1, "what was asked for is not done"
    result = run("dead-letters", "purge", "--name", "Delays", "--container", tmp_path / "state", "--yes", "--json")
    assert (lines(result.stdout), result.exit_code) == ([{"purged": 0, "kept": 20, "held": 0}], 1)


def test_replays_and_purges_are_in_the_audit(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    log, place = tmp_path / "letters", ["--name", "Delays", "--container", tmp_path / "state"]
    letters = lines(run("dead-letters", "list", *place, "--json").stdout)
    some = [letter["id"] for letter in letters if letter["partition"] == letters[0]["partition"]]
    run("logs", "create", log, "--partitions", 1)
    for _ in range(2):  # the second one appends nothing
        assert run("dead-letters", "replay", *place, "--into", log, some[0]).exit_code == 0
    assert run("dead-letters", "purge", *place, "--yes", *some).exit_code == 0
    acts = lines(run("audit", *place, "--json").stdout)
    assert [(act["what"], act["arguments"], act["effect"]) for act in acts] == [
        ("replay", {"letters": some[0]}, f"dead letters appended to {log}: 1"),
        ("purge", {"letters": ", ".join(sorted(some))}, f"deleted dead letters: {len(some)}"),
    ]
    assert all("@" in act["who"] for act in acts)


def test_a_letter_is_replayed_with_a_corrected_value(run: Run, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "state", tmp_path / "state")
    log, place = tmp_path / "letters", ["--name", "Delays", "--container", tmp_path / "state"]
    letter, other = lines(run("dead-letters", "list", *place, "--json").stdout)[:2]
    run("logs", "create", log, "--partitions", 1)
    replay = ["dead-letters", "replay", *place, "--into", log]
    refused = run(*replay, "--value", "{}")
    assert (refused.exit_code, "name just this one" in refused.stderr) == (2, True)
    assert run(*replay, letter["id"], "--value", f"@{tmp_path}/missing").exit_code == 2
    (tmp_path / "corrected").write_bytes(b'{"dep_delay": 12}')
    for _ in range(2):
        assert run(*replay, letter["id"], "--value", f"@{tmp_path}/corrected").exit_code == 0
    assert run(*replay, other["id"], "--value", "").exit_code == 0
    corrected, empty = lines(run("peek", "--source", log, "--json").stdout)
    assert (corrected["value"], corrected["key"], empty["value"]) == ('{"dep_delay": 12}', letter["key"], "")
    assert {"key": "actorproc.dead_letter.edited", "value": "yes"} in corrected["headers"]
    own = lines(run("dead-letters", "list", *place, "--replayed", "--json").stdout)
    assert [found["value"] for found in own] == [letter["value"], other["value"]], "the letters stay"
    assert lines(run("audit", *place, "--json").stdout)[0]["effect"].endswith("with a corrected value")


def test_a_letter_that_is_not_sent_is_named_with_its_reason(
    run: Run, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def append(self: LogTarget, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        if records.num_rows == 1:
            return Outcome(await append_once(self, transaction, batch, partition, records))
        return Outcome(is_void=True, reason="too large\n0 dead letters left")

    async def append_once(*given: Any) -> dict[int, str]:
        first.append(given)
        if len(first) == 1:
            return {0: "too large\n0 dead letters left"}
        await appended(*given)
        return {}

    first, appended = list[Any](), LogTarget.append
    monkeypatch.setattr(LogTarget, "append", append)
    for part in ("state", "events"):
        shutil.copytree(state / part, tmp_path / part)
    place = ["--name", "Delays", "--container", tmp_path / "state"]
    result = run("dead-letters", "replay", *place, "--source", tmp_path / "events")
    assert result.exit_code == 1
    assert "19 dead letters appended" in result.stdout
    named, summary = result.stderr.splitlines()
    assert named.endswith("was not sent: too large\\n0 dead letters left")
    assert "does not take 1 dead letter: replay with a corrected --value, or --into a log" in summary
    letter = named.split()[0]
    done = run("dead-letters", "replay", *place, "--source", tmp_path / "events", letter, "--json")
    assert (lines(done.stdout), done.exit_code) == ([{"replayed": 1, "replayed_before": 0, "refused": {}}], 0)

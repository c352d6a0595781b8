"""A second processor over the output of the first, by commands."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import orjson

from actorproc.stores import OUTPUT_SCHEME
from tests.cli.conftest import QUICK_OPTIONS, Run, actorproc

SECOND = ["--name", "late", "--container", "second"]


def test_a_second_processor_reads_the_output_of_the_first(run: Run, state: Path, tmp_path: Path) -> None:
    first = copytree(state, tmp_path / "first") / "state"  # a processor that reads it registers there
    source = ["--source", f"{OUTPUT_SCHEME}file://{first}/Delays"]
    rows = "output_schema=tail string NOT NULL, delay double"
    serve = ["serve", "actorproc.handlers:JsonRows", "--option", rows, *source, *SECOND, *QUICK_OPTIONS]
    done = actorproc(*serve, "--until-end", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "late on" in done.stdout
    assert "180 records handled, 180 rows and 0 dead letters committed" in done.stdout

    place = ["--name", "late", "--container", tmp_path / "second"]
    status = orjson.loads(run("status", *place, *source, "--json").stdout)
    assert (status["lag"], status["lag_exact"]) == (0, True)
    assert [partition["partition"] for partition in status["partitions"]] == ["0", "1", "2", "3"]

    def shown(*which: object) -> list[tuple[str, str, float]]:
        lines = map(orjson.loads, run("output", *which, "--json").stdout.splitlines())
        return sorted((line["_partition"], line["tail"], line["delay"]) for line in lines)

    assert shown(*place) == shown("--name", "Delays", "--container", first)

    own_output = ["--source", f"{OUTPUT_SCHEME}file://second/late"]
    own = actorproc(*serve[:4], *own_output, *SECOND, cwd=tmp_path)
    assert own.returncode == 2
    assert "late would read its own output" in own.stderr
    for given in (source, []):
        replay = run("dead-letters", "replay", *place, *given)
        assert replay.exit_code == 2
        assert "a stream of Kinesis or a queue, and this is a processor's output" in replay.stderr

"""`actorproc verify`: its output and its exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson

from tests.cli.conftest import Run
from tests.cli.reading import LAYOUT


def test_verify_finds_damage_and_makes_the_safe_repairs(run: Run, state: Path, tmp_path: Path) -> None:
    place, events = tmp_path / "state", tmp_path / "events"
    shutil.copytree(state / "state", place)
    shutil.copytree(state / "events", events)
    command = ["verify", "--name", "Delays", "--container", place, "--log", events]
    sound = run(*command)
    assert sound.exit_code == 0, sound.output
    assert "nothing is missing or altered" in sound.stdout

    letters = place / LAYOUT.dead_letter_file("0", 0)
    letters.write_bytes(b'{"another": "letter"}\n')
    found = run(*command)
    assert found.exit_code == 1
    assert "has other dead letters than commit 0" in found.stdout
    assert "--repair writes those of the commit" in found.stdout
    (damage,) = orjson.loads(run(*command, "--json").stdout)["damages"]
    assert (damage["object"], damage["repairable"]) == (LAYOUT.dead_letter_file("0", 0), True)

    assert run(*command, "--repair").exit_code == 0
    assert run(*command).exit_code == 0
    assert letters.read_bytes() == (state / "state" / LAYOUT.dead_letter_file("0", 0)).read_bytes()

    (place / LAYOUT.output_file("0", 0)).unlink()
    lost = run(*command, "--repair")
    assert lost.exit_code == 1
    assert "commit 0 is missing" in lost.stdout

"""The README's trial, as written: in an empty folder, by a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.slow
def test_a_newcomer_who_types_what_the_readme_says_sees_what_it_promises(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "actorproc"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m actorproc "$@"\n')
    command.chmod(0o755)
    folder = tmp_path / "trial"
    folder.mkdir()
    (folder / "app.py").write_text(re.findall(r"```python\n(# app\.py\n.*?)```", README, re.DOTALL)[0])
    trial = README.partition("## Try a handler of your own")[2].partition("\n## ")[0]
    first, service = re.findall(r"```sh\n(.*?)```", trial, re.DOTALL)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}

    def run(script: str) -> str:
        # `set -m`: jobs and %1, as at a prompt. The trial at a quicker rate.
        shell = ["bash", "-c", f"set -em\n{script.replace('--rate 1000', '--rate 4000')}"]
        done = subprocess.run(
            shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = run(first)
    assert "4 records handled, 3 rows and 1 dead letter committed" in out
    assert "see why: actorproc dead-letters list --name Delays --container state" in out
    assert out.count("KeyError") == 1
    assert "20,000 events appended to events" in run(service)
    ended = run("actorproc serve app:Delays --source events --container state --until-end")
    assert "0 dead letters committed" in ended
    rows = [orjson.loads(line) for line in run("actorproc output --name Delays --container state --json").splitlines()]
    assert len(rows) == len({(row["_partition"], row["_sequence"]) for row in rows}) == 20_003

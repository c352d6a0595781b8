"""`actorproc doctor` tries sinks without leaving rows, and hosts refuse to start where it says so."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


HANDLER = """
from actorproc import JsonRows

class Orders(JsonRows):
    output_schema = "n long, note string"
"""


def tried(run: Run, *arguments: str, code: int = 0) -> dict[str, object]:
    done = run("doctor", "state", "--name", "Orders", "--json", *arguments)
    assert done.exit_code == code, done.output
    (found,) = json.loads(done.stdout)["sinks"]
    return dict(found)


def test_doctor_leaves_nothing_in_a_sink(run: Run, tmp_path: Path) -> None:
    found = tried(run, "--sink", f"db=sqlite:{tmp_path}/rows.db")
    assert (found["error"], found["guarantee"]) == (None, "exactly once")
    assert isinstance(found["latency_ms"], float)
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_doctor_and_serve_name_what_is_wrong_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "orders_app.py").write_text(HANDLER)
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute("CREATE VIEW narrow AS SELECT 1 AS n")
    sink = ("--sink", f"db=sqlite:{tmp_path}/rows.db", "--sink-option", "db.table=narrow")
    found = tried(run, *sink, code=1)
    assert (found["error"], found["refused"]) == ("Cannot add a column to a view", True)
    (tmp_path / "lines").write_text('{"n": 1}\n')
    assert run("produce", "--log", "events", "--partitions", 1, "lines").exit_code == 0
    done = run("serve", "orders_app:Orders", "--source", "events", "--container", "state", "--until-end", *sink)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == "error: sink db: Cannot add a column to a view"
    assert run("output", "--name", "Orders", "--container", "state", "--json").stdout == ""
    assert "no processor has ever run" in run("sinks", "list", "--name", "Orders", "--container", "state").stderr


@pytest.mark.parametrize(
    ("url", "why"),
    [("postgresql://me@127.0.0.1:9/db", "onnection refused"), ("sqlite:orders_app.py/x/rows.db", "Not a directory")],
)
def test_doctor_says_why_a_sink_cannot_be_reached(run: Run, tmp_path: Path, url: str, why: str) -> None:
    (tmp_path / "orders_app.py").write_text(HANDLER)
    assert why in str(tried(run, "--sink", f"db={url}", code=1)["error"])


def test_a_sink_to_try_needs_the_name_of_the_processor(run: Run) -> None:
    assert "--sink needs --name" in run("doctor", "state", "--sink", "db=sqlite:x.db").stderr

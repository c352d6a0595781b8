"""`actorproc doctor` tries sinks without leaving rows, and hosts refuse to start where it says so."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Run, actorproc


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


@pytest.mark.parametrize("on_reset", ["repeat", "replace"])
def test_doctor_leaves_nothing_in_a_sink(run: Run, tmp_path: Path, on_reset: str) -> None:
    found = tried(run, "--sink", f"db=sqlite:{tmp_path}/rows.db", "--sink-option", f"db.on_reset={on_reset}")
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


def ran(run: Run, tmp_path: Path, schema: str = "n long, note string", code: int = 0) -> None:
    """The processor has run once, with two rows."""
    (tmp_path / "orders_app.py").write_text(HANDLER.replace("n long, note string", schema))
    (tmp_path / "lines").write_text('{"n": 1}\n{"n": 2}\n')
    assert run("produce", "--log", "events", "--partitions", 1, "lines").exit_code == 0
    done = actorproc(
        "serve", "orders_app:Orders", "--source", "events", "--container", "state", "--until-end", cwd=tmp_path
    )
    assert done.returncode == code, done.stderr


def objects(tmp_path: Path) -> set[str]:
    return {str(path) for path in tmp_path.rglob("*") if path.is_file() and ".actorproc" not in path.parts}


def test_doctor_tries_a_delta_table_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    ran(run, tmp_path)
    before = objects(tmp_path)
    found = tried(run, "--sink", "table=delta")
    assert (found["error"], found["note"], found["guarantee"]) == (None, "", "exactly once")
    assert objects(tmp_path) == before
    log = tmp_path / "state" / "Orders" / "output" / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text("no log\n")
    found = tried(run, "--sink", "table=delta", code=1)
    assert "_delta_log" in str(found["error"])


def test_a_column_that_delta_cannot_have_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    ran(run, tmp_path, "`a b` long")
    found = tried(run, "--sink", "table=delta", code=1)
    assert found["refused"]
    assert "'a b'" in str(found["error"])
    assert "\n" not in str(found["error"])


def iceberg(tmp_path: Path, catalog: str = "catalog.db", *more: str) -> list[str]:
    url = f"iceberg:sqlite:///{tmp_path}/{catalog}#flights.orders"
    return ["--sink", f"lake={url}", "--sink-option", f"lake.warehouse=file://{tmp_path}/warehouse", *more]


def test_doctor_tries_an_iceberg_table_and_creates_none(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    ran(run, tmp_path)
    assert tried(run, *iceberg(tmp_path))["error"] is None
    from pyiceberg.catalog import load_catalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import NestedField, StringType

    catalog = load_catalog(
        "actorproc", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse"
    )
    assert catalog.list_namespaces() == []
    catalog.create_namespace("flights")
    columns = Schema(NestedField(1, "n", StringType()), NestedField(2, "partition", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "partition"))
    catalog.create_table("flights.orders", columns, partition_spec=spec)
    found = tried(run, *iceberg(tmp_path), code=1)
    assert found["refused"]
    assert "flights.orders cannot have the columns of the output" in str(found["error"])
    serve = ["serve", "orders_app:Orders", "--source", "events", "--container", "state", "--until-end"]
    done = actorproc(*serve, *iceberg(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "flights.orders cannot have the columns" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("iceberg:nodb://host/x#a.b", "Could not infer the catalog type"),
        ("iceberg:sqlite:////nowhere/at/all.db#a.b", "unable to open database file"),
    ],
)
def test_a_catalog_that_cannot_be_had_is_refused(run: Run, tmp_path: Path, url: str, why: str) -> None:
    pytest.importorskip("pyiceberg")
    found = tried(run, "--sink", f"lake={url}", "--sink-option", f"lake.warehouse=file://{tmp_path}/wh", code=1)
    assert found["refused"], found
    assert why in str(found["error"])


def test_doctor_tries_sinks_whose_positions_are_in_the_container(run: Run) -> None:
    assert tried(run, "--sink", "hook=http://127.0.0.1:9/orders")["error"] is None

"""Wrong arguments of `actorproc spark` and `serve --spark`: one line, before Spark starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Run, actorproc

SPARK_APP = """
def counts(rows):
    return rows.groupBy("tail").count()

def table(rows, table):
    return rows

class Rows:
    pass
"""


CHECKPOINT = ["--spark-checkpoint", "spark"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries_app.py").write_text(SPARK_APP)
    (tmp_path / "flights_app.py").write_text(APP)
    return tmp_path


def refused(run: Run, *arguments: object, says: str) -> None:
    result = run(*arguments)
    assert says in result.stderr, result.output
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["queries_app"], "write MODULE:FUNCTION, such as app:delays"),
        (["src/shop/tables.py"], "write MODULE:FUNCTION, such as shop.tables:FUNCTION"),
        (["queries_app.py:counts"], "write MODULE:FUNCTION, such as queries_app:counts"),
        (["nowhere:counts"], "there is no module 'nowhere'"),
        (["queries_app:count"], "did you mean counts?"),
        (["queries_app:Rows"], "no function"),
        (["queries_app:table"], "may take spark, checkpoint, trigger: missing a required argument: 'table'"),
        (["queries_app:counts", "--name", "Nope"], "no processor 'Nope' at file://"),
        (["queries_app:counts", "--container", "elsewhere"], "no processor 'Delays' at file://"),
        (["queries_app:counts", "--trigger", "soon"], "--trigger = 'soon': write seconds"),
        (["queries_app:counts", "--stop-within", "x"], "--stop-within = 'x': write seconds"),
        (["queries_app:counts", "--stop-within=-1s"], "--stop-within = '-1s': at least 0 s"),
        (["queries_app:counts", "--conf", "x"], "--conf 'x': write --conf name=value"),
        (["queries_app:counts", "--remote", "sc://x", "--master", "local"], "--master and --package do not go with it"),
        (["queries_app:counts", "--set", "nope=1"], "there is no such setting"),
        (["queries_app:counts", "--to", "parquet"], "--to parquet needs --path URL"),
        (["queries_app:counts", "--to", "actorproc"], "--to actorproc needs --path URL: the log"),
    ],
)
def test_a_wrong_argument_is_named(run: Run, state: Path, options: list[str], says: str) -> None:
    of = ["--name", "Delays", "--container", state / "state", "--checkpoint", "spark"]
    refused(run, "spark", *of, *options, says=says)


@pytest.mark.parametrize("option", ["--checkpoint", "--path"])
def test_locations_inside_the_processors_folder_are_refused(run: Run, state: Path, option: str) -> None:
    inside = state / "state" / "Delays" / "output" / "x"
    of = ["--name", "Delays", "--container", state / "state", "--checkpoint", "spark", option, inside]
    refused(
        run, "spark", "queries_app:counts", *of, says=f"{option} '{inside}' overlaps the folder of processor Delays"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--spark-checkpoint", "spark"], "--spark-checkpoint goes with --spark MODULE:FUNCTION"),
        (["--spark", "app:counts '"], "No closing quotation"),
        (
            ["--spark", "queries_app:counts"],
            "--spark 'queries_app:counts' needs --spark-checkpoint URL: where Spark notes",
        ),
        (["--spark", "queries_app:count", *CHECKPOINT], "did you mean counts?"),
        (["--spark", "--trigger 5s nowhere:counts", *CHECKPOINT], "there is no module 'nowhere'"),
        (["--spark", "queries_app:count --checkpoint=c"], "did you mean counts?"),
        (
            ["--spark", "queries_app:counts --triger 5s", *CHECKPOINT],
            "--spark 'queries_app:counts --triger 5s': no option --triger; did you mean --trigger?",
        ),
        (["--spark", "queries_app:counts --to parquet", *CHECKPOINT], "--to parquet needs --path URL"),
        (["--spark", "queries_app:counts --conf x", *CHECKPOINT], "--conf 'x': write --conf name=value"),
        (["--spark", "queries_app:counts --max-rows two", *CHECKPOINT], "--max-rows: 'two': write a whole number"),
        (
            ["--spark", "queries_app:counts --remote sc://h --master local", *CHECKPOINT],
            "--master and --package do not go with it",
        ),
        (["--spark", "--trigger 5s", *CHECKPOINT], "missing MODULE:FUNCTION"),
        (["--spark", "queries_app:counts --help", *CHECKPOINT], "no option --help"),
        (["--spark", "queries_app:counts --max-rows x", *CHECKPOINT], "--max-rows: 'x'"),
    ],
)
def test_serve_checks_its_query_before_a_host_starts(run: Run, options: list[str], says: str) -> None:
    refused(run, "serve", "flights_app:Delays", "--source", "events", "--container", "state", *options, says=says)


COMMANDS = pytest.mark.parametrize(
    ("who", "command"),
    [
        ("actorproc spark", ["spark", "queries_app:counts", "--name", "Delays", "--checkpoint", "spark"]),
        (
            "serve --spark",
            ["serve", "flights_app:Delays", "--source", "events", "--spark", "queries_app:counts", *CHECKPOINT],
        ),
    ],
)


@COMMANDS
def test_without_java_one_line_says_how_to_install_it(folder: Path, state: Path, who: str, command: list[str]) -> None:
    (folder / "empty").mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": str(folder / "empty")}
    ended = actorproc(*command, "--container", state / "state", cwd=folder, env=environment)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {who} needs Java 17 or newer for Spark, and there is none on PATH: inst")
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""


@COMMANDS
def test_without_pyspark_one_line_names_the_extra(folder: Path, state: Path, who: str, command: list[str]) -> None:
    (folder / "pyspark").mkdir()
    (folder / "pyspark" / "__init__.py").write_text("raise ImportError('it is not there')\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }
    ended = actorproc(*command, "--container", state / "state", cwd=folder, env=environment)
    assert ended.returncode == 2
    assert ended.stderr == (
        "error: actorproc.spark needs PySpark 4.1, 4.2 or 4.3: install the extra 'spark': "
        "pip install '.[spark]' in the checkout, "
        "or as actorproc itself was installed\n"
    )

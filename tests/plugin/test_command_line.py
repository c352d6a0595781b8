"""A package of a stranger, used from the command line: source, store, decoder and commands."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import QUICK_OPTIONS
from tests.plugin.conftest import Run
from tests.plugin.packages import installed_package

APP = """
from actorproc import DecodedRows

class Took(DecodedRows):
    output_schema = "level string NOT NULL, took double"
"""
LINES = ["level=info took=12.5\n", 'level=warn took=1 text="a b"\n', "no logfmt\n", "level=info took=slow\n"]
PLACE = ("--name", "Took", "--container", "acmedb://state.db")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A handler, and two partitions of the stranger's source, with two values each that do not decode."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "logs").mkdir()
    for partition in ("a", "b"):
        (tmp_path / "logs" / f"{partition}.txt").write_text("".join(LINES))
    return tmp_path


def serve(acme: Run, files: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    source = ("--source", f"acme://{files}/logs", "--source-option", "suffix=.txt")
    decode = ("--set", "decode=logfmt", "--until-end", *QUICK_OPTIONS)
    return acme("serve", "app:Took", *source, "--container", "acmedb://state.db", *decode, *options, code=code)


def test_a_strangers_source_store_and_decoder_serve_and_are_looked_at(acme: Run, files: Path) -> None:
    serve(acme, files)
    rows = [json.loads(line) for line in acme("output", *PLACE, "--json").stdout.splitlines()]
    assert sorted((row["level"], row["took"]) for row in rows) == [("info", 12.5)] * 2 + [("warn", 1.0)] * 2
    source = ("--source", f"acme://{files}/logs", "--source-option", "suffix=.txt")
    status = json.loads(acme("status", *PLACE, *source, "--json").stdout)
    assert [(part["partition"], part["lag"], part["dead_letters"]) for part in status["partitions"]] == [
        ("a", 0, 2),
        ("b", 0, 2),
    ]
    letters = acme("dead-letters", "list", *PLACE).stdout
    assert "'no' is not KEY=VALUE" in letters
    assert "slow" in letters
    assert "safe to use" in acme("doctor", "acmedb://state.db").stdout
    assert "level=info took=12.5" in acme("peek", *source).stdout


def test_a_strangers_sink_gets_the_rows_and_is_looked_at(acme: Run, files: Path) -> None:
    serve(acme, files, "--sink", "acme=acmedb:rows.db", "--sink-option", "acme.table=took")
    with sqlite3.connect(files / "rows.db") as connection:
        assert (
            sorted(connection.execute("SELECT level, took FROM took")) == [("info", "12.5")] * 2 + [("warn", "1.0")] * 2
        )
    (listed,) = json.loads(acme("sinks", "list", *PLACE, "--json").stdout)
    assert (listed["name"], listed["state"], listed["rows_behind"]) == ("acme", "up to date", 0)
    wrong = serve(acme, files, "--sink", "acme=acmedb:rows.db", "--sink-option", "acme.tabel=took", code=2)
    assert "tabel" in wrong.stderr


def test_workers_share_leases_in_a_strangers_store(acme: Run, files: Path) -> None:
    done = serve(acme, files, "--workers", "2")
    assert done.returncode == 0
    assert len(acme("output", *PLACE, "--json").stdout.splitlines()) == 4


def test_commands_of_a_stranger_are_listed_and_run(acme: Run, files: Path) -> None:
    listed = acme("--help").stdout
    assert "acme-hello" in listed
    assert "Say hello." in listed
    assert "Look at what Acme keeps." in listed
    assert acme("acme-hello", "Ada").stdout == "Acme says hello to Ada.\n"
    assert "[NAME]" in acme("acme-hello", "--help").stdout
    assert acme("acme", "objects", "acmedb://state.db").stdout == "0 objects\n"
    assert acme("acme", "partitions", f"acme://{files}/logs").stdout == "\n"
    refused = acme("acme-hello", " ", code=2)
    assert refused.stderr == "error: acme-hello: the name is empty\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source-option", "sufix=.txt"], "no source option 'sufix'; did you mean suffix? (it has suffix, poll)"),
        (["--source-option", "poll=0"], "source option poll = '0': must be greater than 0"),
        (
            ["--set", "acmedb_tokn=1"],
            "acmedb_tokn: there is no such setting; did you mean acmedb_token? (the store has",
        ),
        (["--set", "acmedb_busy_timeout=0"], "store option acmedb_busy_timeout = '0': must be greater than 0"),
        (["--set", "decode_schema=x"], "decode = logfmt takes no decode_schema"),
        (["--set", "decode=logfm"], "there is no such decoder; there are: arrow, avro, csv, json, json-schema, logfmt"),
    ],
)
def test_a_wrong_option_of_a_stranger_is_one_error(acme: Run, files: Path, options: list[str], message: str) -> None:
    refused = serve(acme, files, *options, code=2)
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_options_of_a_strangers_store_arrive_and_files_are_read(acme: Run, files: Path) -> None:
    (files / "token").write_text("@secret\n")
    (files / "actorproc.toml").write_text('acmedb_token = "@token"\n')
    serve(acme, files)
    assert acme("output", *PLACE).stdout
    (files / "token").write_text("another\n")
    refused = acme("output", *PLACE, code=None)
    assert refused.returncode
    assert "another token is needed" in refused.stderr
    (files / "actorproc.toml").write_text('acmedb_token = "@gone"\n')
    assert (
        "store option acmedb_token: begins with @, and the file that it names cannot be read"
        in acme("output", *PLACE, code=2).stderr
    )


def test_a_log_in_a_strangers_store_has_options_of_its_own(acme: Run, files: Path) -> None:
    (files / "actorproc.toml").write_text('acmedb_token = "of the log"\n')
    (files / "lines").write_text("".join(LINES[:2]))
    acme("produce", "--log", "acmedb://log.db", "--partitions", "1", "lines")
    (files / "actorproc.toml").write_text('acmedb_token = "of the container"\n')
    source = ("--source", "acmedb://log.db", "--source-option", "acmedb_token=of the log")
    where = ("--container", "acmedb://state.db", "--set", "decode=logfmt", "--until-end", *QUICK_OPTIONS)
    acme("serve", "app:Took", *source, *where)
    assert len(acme("output", *PLACE, "--json").stdout.splitlines()) == 2
    assert acme("status", *PLACE, *source).returncode == 0


def test_a_broken_plugin_breaks_nothing_but_itself(acme: Run, tmp_path: Path) -> None:
    groups = ("sources", "stores", "decoders", "commands")
    points = {group: {f"broken-{group}": "failing_plugin:make"} for group in groups}
    code = "raise RuntimeError('it fails\\n\\x1b[31m')"
    sites = (installed_package(tmp_path / "site", "broken-plugin", points, failing_plugin=code),)
    assert "broken-commands" in acme("--help", sites=sites).stdout
    assert acme("acme-hello", sites=sites).stdout == "Acme says hello to world.\n"
    for command in (
        ("broken-commands", "--any", "thing"),
        ("doctor", "broken-stores://x"),
        ("peek", "--source", "broken-sources://x"),
        ("serve", "actorproc.handlers:DecodedRows", "--name", "x", "--source", "log", "--container", "state",
         "--option", "output_schema=a string", "--set", "decode=broken-decoders"),
    ):  # fmt: skip
        refused = acme(*command, sites=sites, code=2)
        assert "of package broken-plugin: " in refused.stderr
        assert "Traceback" not in refused.stderr
        assert "\x1b" not in refused.stderr


def test_a_name_that_two_packages_register_names_both(acme: Run, tmp_path: Path) -> None:
    points = {"sources": {"acme": "other:make"}, "commands": {"acme-hello": "other:make"}, "decoders": {"json": "o:m"}}
    sites = (installed_package(tmp_path / "site", "other-acme", points),)
    both = "registered by acme-actorproc and other-acme; uninstall one of them"
    assert both in acme("peek", "--source", "acme:///x", sites=sites, code=2).stderr
    assert both in acme("acme-hello", sites=sites, code=2).stderr
    assert "acme-hello" in acme("--help", sites=sites).stdout
    (tmp_path / "app.py").write_text(APP)
    serve = acme("serve", "app:Took", "--source", "log", "--container", "state", sites=sites, code=2)
    assert "'json' is registered by actorproc and other-acme; uninstall one of them" in serve.stderr


def test_a_command_of_actorproc_cannot_be_replaced(acme: Run, tmp_path: Path) -> None:
    points = {"commands": {"processors": "taker:processors"}}
    code = "def processors() -> None:\n    print('taken')"
    site = installed_package(tmp_path / "site", "taker", points, taker=code)
    listed = acme("processors", "--help", sites=(site,)).stdout
    assert "List, describe, rename and delete processors." in listed


def test_a_command_that_typer_cannot_make_says_so(acme: Run, tmp_path: Path) -> None:
    points = {"commands": {"odd": "odd:command", "number": "odd:number"}}
    code = "def command(x: int | bytes) -> None: pass\nnumber = 7"
    sites = (installed_package(tmp_path / "site", "odd-package", points, odd=code),)
    assert "(cannot be used: " in acme("--help", sites=sites).stdout
    assert acme("odd", sites=sites, code=2).stderr.startswith("error: odd: ")
    assert acme("number", sites=sites, code=2).stderr.startswith("error: number: ")


def test_code_of_a_stranger_logs_to_stderr_with_structlog(acme: Run, tmp_path: Path) -> None:
    points = {"commands": {"talks": "talking:command"}, "sources": {"talk": "talking_source:make"}}
    log = "import structlog\nstructlog.get_logger().info('told')\n"
    modules = {"talking": "def command() -> None:\n    import structlog\n    structlog.get_logger().info('told')"}
    site = installed_package(tmp_path / "site", "talking", points, talking_source=f"{log}make = None", **modules)
    for done in (acme("talks", sites=(site,)), acme("peek", "--source", "talk:///x", sites=(site,), code=None)):
        assert done.stdout == ""
        assert '"event":"told"' in done.stderr

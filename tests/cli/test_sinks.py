"""`actorproc sinks`: acts of operators, with their audit; and what is wrong with a sink names it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import anyio
import orjson
import pytest

from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.entries import register_sink
from actorproc.sinks.opening import make_sink
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.cli.conftest import QUICK_OPTIONS, Run, actorproc


@pytest.fixture
def place(run: Run, tmp_path: Path) -> list[object]:
    """A processor with a sink that has all rows."""
    (tmp_path / "lines").write_text('{"n": 1}\n{"n": 2}\n')
    assert run("produce", "--log", tmp_path / "events", "--partitions", 1, tmp_path / "lines").exit_code == 0
    done = serve(tmp_path)
    assert done.returncode == 0, done.stderr
    return ["--name", "Orders", "--container", tmp_path / "state"]


def serve(tmp_path: Path, *more: str, url: str = "sqlite:rows.db"):  # type: ignore[no-untyped-def]
    return actorproc(
        "serve", "actorproc.handlers:JsonRows", "--option", "output_schema=n long", "--source", "events", "--name",
        "Orders", "--container", "state", "--until-end", "--sink", f"db={url}", *more, *QUICK_OPTIONS, cwd=tmp_path,
    )  # fmt: skip


def audit(run: Run, place: list[object]) -> list[tuple[str, str]]:
    lines = run("audit", *place, "--json").stdout.splitlines()
    return [(act["what"], act["reason"]) for act in map(orjson.loads, lines)]


def test_a_pause_has_a_reason_and_only_a_paused_sink_is_resumed(run: Run, place: list[object]) -> None:
    assert "db is not paused: nothing was changed" in run("sinks", "resume", "db", *place).stdout
    assert audit(run, place) == []
    assert run("sinks", "pause", "db", *place, "--reason", "table is copied").exit_code == 0
    assert run("sinks", "resume", "db", *place).stdout == ""
    assert sorted(audit(run, place)) == [("pause sink", "table is copied"), ("resume sink", "")]
    assert "there is no sink 'bd'; there are: db" in run("sinks", "resume", "bd", *place).stderr


def test_a_sink_is_deleted_with_yes_only(run: Run, place: list[object]) -> None:
    assert "would forget db, which lacks 0 commits; --yes does it" in run("sinks", "delete", "db", *place).stdout
    assert "db" in run("sinks", "list", *place).stdout
    assert "db is forgotten" in run("sinks", "delete", "db", *place, "--yes").stdout
    assert "Orders has no sinks" in run("sinks", "list", *place).stdout
    assert "there is no sink 'db'; there are: none" in run("sinks", "delete", "db", *place).stderr


def test_another_mode_or_key_of_a_registered_sink_is_refused(place: list[object], tmp_path: Path) -> None:
    upsert = ("--sink-option", "db.mode=upsert", "--sink-option", "db.key=n")
    done = serve(tmp_path, *upsert)
    assert done.returncode == 2
    assert "registered with mode = append, and here it has mode = upsert, key = n" in " ".join(done.stderr.split())
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        assert connection.execute('SELECT count(*) FROM "Orders"').fetchone() == (2,)
    assert serve(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("url", "one", "other", "why"),
    [
        ("http://h/x", {"mode": "append"}, {}, None),
        ("redis://h/0", {}, {"stream": "other"}, "stream = other"),
        ("redis://h/0", {"stream": "s"}, {"mode": "upsert", "key": "n"}, "mode = upsert, key = n"),
        ("redis://h/0", {"mode": "upsert", "key": "n"}, {"mode": "upsert", "key": "m, n"}, "key = m, n"),
        ("clickhouse://h/d", {"table": "a"}, {"table": "b"}, "table = b"),
        ("kafka://h:9/t", {"key": "a"}, {"key": "b"}, "key = b"),
    ],
)
def test_all_sinks_notice_another_target_or_key(
    url: str, one: dict[str, str], other: dict[str, str], why: str | None
) -> None:
    async def register(options: dict[str, str]) -> None:
        sink = make_sink("db", {"url": url, **options}, processor="Orders", clock=SYSTEM)
        await register_sink(store, ProcessorLayout("Orders"), "db", sink.registered_as, {}, fixed=sink.fixed)

    async def main() -> None:
        await register(one)
        await register(one)
        if why is None:
            await register(other)
            return
        with pytest.raises(UsageError, match=f"and here it has .*{why}"):
            await register(other)

    store = Store(MemoryStore())
    anyio.run(main)


def test_wrong_options_name_the_sink() -> None:
    for options, why in (
        ({"tabel": "x"}, "there is no sink option 'tabel'; did you mean table"),
        ({"mode": "x"}, "mode"),
    ):
        with pytest.raises(UsageError, match=rf"^sink db = .*{why}"):
            make_sink("db", {"url": "postgresql://me@h/d", **options}, processor="Orders", clock=SYSTEM)


def test_a_password_that_is_empty_may_be_in_the_url() -> None:
    for url in ("postgresql://postgres:@/postgres?host=/tmp/x", "postgresql://postgres:@localhost/db"):
        assert make_sink("db", url, processor="Orders", clock=SYSTEM).url == url
    with pytest.raises(UsageError, match="must not contain a password"):
        make_sink("db", "postgresql://postgres:x@localhost/db", processor="Orders", clock=SYSTEM)

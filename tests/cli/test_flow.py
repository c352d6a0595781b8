"""Whole flows with real processes: from lines to rows and dead letters, through killed workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from actorproc.cli.workers import GRACE
from actorproc.runtime.signals import SAME_SIGNAL_TIME
from tests.cli.conftest import APP, QUICK_OPTIONS, Run, actorproc, events

PLACE = ["--name", "Delays", "--container", "state"]
SERVE = ["serve", "flights_app:Delays", "--source", "events", *PLACE, *QUICK_OPTIONS]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights_app.py").write_text(APP)
    (tmp_path / "flights.jsonl").write_bytes(b"\n".join(events(400)) + b"\n")
    return tmp_path


def lines(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]


def logged(path: Path) -> list[dict[str, Any]]:
    """Log lines that are complete."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"}\n")]


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@contextmanager
def served(*options: object, log: str = "serve.log") -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`serve` in the background, and its log."""
    path = Path(log)
    with path.open("wb") as stderr:
        command = [sys.executable, "-m", "actorproc", *SERVE, *map(str, options)]
        process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL)
        try:
            yield process, path
        finally:
            process.kill()
            process.wait()


def event(path: Path, name: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        line for line in logged(path)
        if line["event"] == name and all(line.get(field) == value for field, value in fields.items())
    ]  # fmt: skip


HANGS = """
import time
from actorproc import PartitionHandler

class Delays(PartitionHandler):
    async def process(self, batch, ctx):
        ctx.log.info("hanging")
        time.sleep(3600)  # the event loop hangs with it: no signal is heard
"""


def produce(run: Run) -> None:
    result = run("produce", "--log", "events", "--partitions", "4", "--key", "tail", "flights.jsonl")
    assert result.exit_code == 0, result.output


def test_lines_become_rows_and_dead_letters_that_are_replayed_once(run: Run, folder: Path) -> None:
    with (folder / "flights.jsonl").open("rb") as stdin:
        produced = actorproc(
            "produce", "--log", "events", "--partitions", "4", "--key", "tail", "-", cwd=folder, stdin=stdin
        )
    assert produced.returncode == 0, produced.stderr
    assert "400 events appended to events" in produced.stdout
    done = actorproc(*SERVE, "--until-end", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(orjson.loads(line)["timestamp"].endswith("Z") for line in done.stderr.splitlines())

    status = orjson.loads(run("status", *PLACE, "--source", "events", "--json").stdout)
    assert [partition["lag"] for partition in status["partitions"]] == [0, 0, 0, 0]
    rows = lines(run("output", *PLACE, "--json").stdout)
    assert sorted(row["delay"] for row in rows) == [float(n) for n in range(400) if n % 10]
    letters = lines(run("dead-letters", "list", *PLACE, "--json").stdout)
    assert len(letters) == 40
    assert {letter["replayed"] for letter in letters} == {False}
    assert "replayed" not in run("dead-letters", "list", *PLACE).stdout, "nothing ever was: no column for it"
    assert "no replayed dead letter" in run("dead-letters", "list", *PLACE, "--replayed").stdout

    replay = ["dead-letters", "replay", *PLACE, "--json"]
    assert lines(run(*replay).stdout) == [{"replayed": 40, "replayed_before": 0, "refused": {}}], (
        "without --source: it is known"
    )
    assert lines(run(*replay, "--source", "events").stdout) == [{"replayed": 0, "replayed_before": 40, "refused": {}}]
    status = orjson.loads(run("status", *PLACE, "--source", "events", "--json").stdout)
    assert sum(partition["lag"] for partition in status["partitions"]) == 40
    assert "no dead letter is left to replay" in run("dead-letters", "list", *PLACE, "--not-replayed").stdout
    told = run("dead-letters", "list", *PLACE, "--not-replayed", "--kind", "KeyError").stderr
    assert told == "no dead letter of kind 'KeyError'; there are: none\n"

    again = actorproc(*SERVE, "--until-end", cwd=folder)
    assert again.returncode == 0, again.stderr
    letters = lines(run("dead-letters", "list", *PLACE, "--json").stdout)
    assert len(letters) == 80, "they have no delay this time either"
    replayed = [letter for letter in letters if letter["replayed"]]
    assert len(replayed) == 40
    assert replayed == lines(run("dead-letters", "list", *PLACE, "--replayed", "--json").stdout)
    assert len(lines(run("dead-letters", "list", *PLACE, "--not-replayed", "--json").stdout)) == 40
    table = run("dead-letters", "list", *PLACE).stdout.splitlines()
    assert table[0].split()[:3] == ["letter", "time", "replayed"]
    assert sum("  yes  " in row for row in table) == 40
    which = f"{replayed[0]['partition']}:{replayed[0]['sequence']}"
    assert "replayed" in run("dead-letters", "show", which, *PLACE).stdout
    history = {header["key"]: header["value"] for header in letters[-1]["headers"]}
    assert history["actorproc.dead_letter.processor"] == "Delays"

    purge = ["dead-letters", "purge", *PLACE, "--json"]
    assert "give --yes" in run(*purge).stderr
    assert lines(run(*purge, "--yes", "--before", "2020-01-01T00:00Z").stdout) == [{"purged": 0, "kept": 0, "held": 0}]
    for when in ("2020-01-01", "2020-01-01T00:00", "soon"):
        refused = run(*purge, "--yes", "--before", when)
        assert refused.exit_code == 2
        assert f"--before = '{when}': a time with its zone, such as 2013-01-01T00:00Z" in refused.stderr
    oldest = min(letter["time"] for letter in letters)
    assert lines(run(*purge, "--yes", "--before", oldest).stdout) == [{"purged": 0, "kept": 0, "held": 0}]
    assert lines(run(*purge, "--yes", "--replayed").stdout) == [{"purged": 40, "kept": 0, "held": 0}]
    assert lines(run(*purge, "--yes", "--replayed").stdout) == [{"purged": 0, "kept": 0, "held": 0}]
    assert lines(run(*purge, "--yes").stdout) == [{"purged": 40, "kept": 0, "held": 0}]
    assert run("dead-letters", "list", *PLACE, "--json").stdout == ""
    assert lines(run(*replay).stdout) == [{"replayed": 0, "replayed_before": 0, "refused": {}}]
    assert run(*replay, "--kind", "KeyError").exit_code == 0, "there is none of which it could be the wrong name"


@pytest.mark.slow
def test_a_killed_worker_is_restarted_and_every_row_comes_once(run: Run) -> None:
    produce(run)
    with served("--host", "w", "--workers", 2) as (process, log):
        started = wait_for(lambda: event(log, "partition.opened", host="w-0"), "w-0 runs partitions")
        assert started
        pid = event(log, "worker.started", host="w-0")[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        died = wait_for(lambda: event(log, "worker.died", host="w-0"), "the death is noticed")
        assert died[0]["exit"] == "SIGKILL"
        produce(run)
        wait_for(lambda: len(event(log, "processor.started", host="w-0")) == 2, "w-0 is there again")
        wait_for(
            lambda: len(lines(run("output", *PLACE, "--json").stdout)) == 720, "all rows of both productions are there"
        )
        status = orjson.loads(run("status", *PLACE, *QUICK_OPTIONS, "--json").stdout)
        assert [member["host"] for member in status["members"]] == ["w-0", "w-1"]
        assert all(member["alive"] for member in status["members"])
        pids = [line["pid"] for line in event(log, "worker.started")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        wait_for(lambda: all(map(gone, pids)), "no worker is left")
    places = [(row["_partition"], row["_sequence"]) for row in lines(run("output", *PLACE, "--json").stdout)]
    assert len(places) == len(set(places)) == 720


@pytest.mark.slow
def test_workers_end_when_the_end_is_reached(run: Run, folder: Path) -> None:
    produce(run)
    done = actorproc("--log-level", "warning", *SERVE, "--workers", 2, "--until-end", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert {line["level"] for line in lines(done.stderr)} <= {"warning", "error"}, "workers log as they were told"
    assert "Delays on 2 workers: 400 records handled, 360 rows and 40 dead letters committed" in done.stdout
    assert len(lines(run("output", *PLACE, "--json").stdout)) == 360


def test_workers_do_not_outlive_a_killed_parent(run: Run) -> None:
    produce(run)
    with served("--workers", 2) as (process, log):
        wait_for(lambda: len(event(log, "processor.started")) == 2, "both workers run")
        pids = [line["pid"] for line in event(log, "worker.started")]
        process.kill()
        wait_for(lambda: all(map(gone, pids)), "the workers are gone")
        assert len(event(log, "worker.orphaned")) == 2
        assert len(event(log, "processor.stopped")) == 2, "they left in good order"


@pytest.mark.slow
def test_wrong_use_in_a_worker_stops_all_workers(run: Run, folder: Path) -> None:
    produce(run)
    assert actorproc(*SERVE, "--until-end", cwd=folder).returncode == 0
    (folder / "flights_app.py").write_text(APP.replace("tail string, delay double", "tail string, delay string"))
    refused = actorproc(*SERVE, "--workers", 2, cwd=folder)
    assert refused.returncode == 2
    assert "delay" in refused.stderr
    assert "worker.died" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_and_commits(run: Run, number: signal.Signals) -> None:
    produce(run)
    with served("--set", "commit_interval=1h") as (process, log):
        wait_for(lambda: event(log, "partition.opened"), "it runs")
        wait_for(lambda: event(log, "partition.attempt_failed"), "it has met poison")
        process.send_signal(number)
        assert process.wait(60) == 0
        assert event(log, "partition.closed", reason="stopping")
    assert lines(run("output", *PLACE, "--json").stdout), "what was processed is committed"


def test_a_second_signal_aborts(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(
        "import anyio\nfrom actorproc import PartitionHandler\n"
        "class Delays(PartitionHandler):\n"
        "    async def process(self, batch, ctx):\n"
        "        ctx.log.info('sleeping')\n"
        "        await anyio.sleep(3600)\n"
    )
    produce(run)
    with served() as (process, log):
        wait_for(lambda: event(log, "sleeping"), "the handler sleeps")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: event(log, "processor.stopping"), "it drains")
        time.sleep(1.5 * SAME_SIGNAL_TIME)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        text = log.read_text()
    assert "aborted" in text
    assert "Traceback" not in text


SWALLOWS = """
import anyio
from actorproc import PartitionHandler

class Delays(PartitionHandler):
    async def process(self, batch, ctx):
        ctx.log.info("hanging")
        while True:
            try:
                await anyio.sleep(3600)
            except BaseException:
                pass
"""


@pytest.mark.parametrize("handler", [SWALLOWS, HANGS], ids=["swallows its cancellation", "blocks the event loop"])
def test_a_second_signal_ends_the_process_even_if_its_handler_hangs(run: Run, folder: Path, handler: str) -> None:
    (folder / "flights_app.py").write_text(handler)
    produce(run)
    with served() as (process, log):
        wait_for(lambda: event(log, "hanging"), "the handler is in it")
        process.send_signal(signal.SIGINT)
        time.sleep(1.5 * SAME_SIGNAL_TIME)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(GRACE + 10) == 1
        text = log.read_text()
    assert f"error: aborted: something still ran {GRACE:g} s after the second signal" in text
    assert "Traceback" not in text


@pytest.mark.long
@pytest.mark.parametrize("handler", [SWALLOWS, HANGS], ids=["swallows its cancellation", "blocks the event loop"])
def test_one_signal_ends_the_process_after_its_time(run: Run, folder: Path, handler: str) -> None:
    (folder / "flights_app.py").write_text(handler)
    produce(run)
    with served("--set", "max_handoff_time=1s") as (process, log):
        wait_for(lambda: event(log, "hanging"), "the handler is in it")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        text = log.read_text()
    assert "error: aborted: something still ran 16 s after the first signal" in text


def ended(process: subprocess.Popen[str]) -> str:
    """The stderr of a process that has ended by itself."""
    try:
        return process.communicate(timeout=30)[1]
    finally:
        process.kill()


STARTS_SLOWLY = (
    APP
    + """
from contextlib import asynccontextmanager
import anyio

class Slow(Delays):
    @classmethod
    @asynccontextmanager
    async def shared(cls, options):
        print("starting", flush=True)
        await anyio.sleep(3600)
        yield
"""
)


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--until-end"], 1)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_start_up_ends_it_at_once(
    run: Run, folder: Path, number: signal.Signals, options: list[str], code: int
) -> None:
    (folder / "flights_app.py").write_text(STARTS_SLOWLY)
    produce(run)
    command = [sys.executable, "-m", "actorproc", "serve", "flights_app:Slow", *SERVE[2:], *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(number)
        err = ended(process)
    assert process.returncode == code, err
    assert "Traceback" not in err


HEARS_ASIDE = """
import signal, threading, time
import anyio
from contextlib import asynccontextmanager
from actorproc import PartitionHandler

def ask():
    time.sleep(0.3)  # the event loop waits by now, for nothing
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(3600)

class Slow(PartitionHandler):
    async def process(self, batch, ctx): ...

    @classmethod
    @asynccontextmanager
    async def shared(cls, options):
        threading.Thread(target=ask, daemon=True).start()
        await anyio.sleep(3600)
        yield
"""


def test_a_signal_in_another_thread_wakes_the_host(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(HEARS_ASIDE)
    produce(run)
    command = [sys.executable, "-m", "actorproc", "serve", "flights_app:Slow", *SERVE[2:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        err = ended(process)
    assert process.returncode == 0, err


def test_ctrl_c_while_the_handler_is_imported_ends_it_quietly(folder: Path) -> None:
    (folder / "flights_app.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(3600)\n")
    command = [sys.executable, "-m", "actorproc", *SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        err = ended(process)
    assert (process.returncode, err) == (130, "")


STOPS = """
from actorproc import Decision
class Stopping(Delays):
    def on_error(self, error, failed, attempt):
        return Decision.STOP
"""


@pytest.mark.slow
def test_until_end_fails_with_reasons_if_it_cannot_finish(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(APP + STOPS)
    produce(run)
    serve = ["--log-level", "error", "serve", "flights_app:Stopping", *SERVE[2:], "--until-end"]
    serve += ["--set", "restart_backoff=10ms"]
    for workers in ([], ["--workers", 2]):
        ended = actorproc(*serve, *workers, cwd=folder)
        assert ended.returncode == 1
        assert re.search(
            r"have not reached the end they had at the start\npartitions [0-3,\- ]+: failed at least 5 times",
            ended.stderr,
        )
        assert "on_error returned Decision.STOP: KeyError: 'delay'" in ended.stderr
        assert not any(line.startswith("Traceback") for line in ended.stderr.splitlines())
        assert "flights_app.py" in ended.stderr  # the log shows where, in the handler
        assert not re.search(r"actorproc/\w+\.py", ended.stderr)
        assert "worker.died" not in ended.stderr


EXITS = """
import os
from actorproc import PartitionHandler

class Delays(PartitionHandler):
    async def process(self, batch, ctx):
        os._exit(0)
"""


def test_until_end_fails_if_a_handler_exits_with_0(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(EXITS)
    produce(run)
    ended = actorproc("--log-level", "error", *SERVE, "--until-end", "--workers", 1, cwd=folder)
    assert ended.returncode == 1
    assert "exit code 0 before the end" in ended.stderr


EXITS_ASIDE = """
import asyncio, sys
from actorproc import PartitionHandler

class Delays(PartitionHandler):
    async def process(self, batch, ctx):
        asyncio.get_running_loop().call_soon(sys.exit, 0)
        await asyncio.sleep(10)
"""


def test_until_end_fails_if_a_task_exits_with_0(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(EXITS_ASIDE)
    produce(run)
    ended = actorproc("--log-level", "error", *SERVE, "--until-end", cwd=folder)
    assert ended.returncode == 1
    assert "error: a task or callback beside the handler called sys.exit(0)" in ended.stderr


@pytest.mark.slow
def test_until_end_that_a_signal_stops_before_is_no_success(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(SWALLOWS.replace("except BaseException", "except ZeroDivisionError"))
    produce(run)
    for workers in ([], ["--workers", "2"]):
        with served("--until-end", "--set", "max_handoff_time=100ms", *workers) as (process, log):
            wait_for(partial(event, log, "hanging"), "it runs")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 1
            assert "have not reached the end they had at the start" in log.read_text()


def test_serve_ends_with_a_summary_and_the_dead_letters_command(run: Run, folder: Path) -> None:
    produce(run)
    ended = actorproc(*SERVE, "--until-end", "--host", "h", cwd=folder)
    summary, hint = ended.stdout.splitlines()
    assert summary.startswith("Delays on h: 400 records handled, 360 rows and 40 dead letters committed, in ")
    command = hint.removeprefix("see why: actorproc ")
    assert command == "dead-letters list --name Delays --container state"
    assert "40 dead letters: KeyError (40)" in run(*command.split()).stdout
    warned = [line for line in lines(ended.stderr) if line["event"] == "processor.dead_letters"]
    assert warned[-1]["since_start"] == 40
    again = actorproc(*SERVE, "--until-end", "--host", "h", cwd=folder)
    assert "0 dead letters" in again.stdout
    assert len(again.stdout.splitlines()) == 1


@pytest.mark.slow
def test_a_hanging_thread_does_not_keep_an_aborted_host_alive(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(HANGS.replace("async def", "def"))
    produce(run)
    with served() as (process, log):
        wait_for(lambda: event(log, "hanging"), "the handler hangs in its thread")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: event(log, "processor.stopping"), "it drains")
        time.sleep(1.5 * SAME_SIGNAL_TIME)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        assert "aborted" in log.read_text()


@pytest.mark.parametrize("opened", [os.openpty, os.pipe])
def test_status_watch_shows_the_state_again_until_interrupted(
    state: Path, place: list[object], opened: Callable[[], tuple[int, int]]
) -> None:
    outer, inner = opened()
    options = [*map(str, place), "--source", str(state / "events"), "--watch"]
    command = [sys.executable, "-m", "actorproc", "status", *options]
    with subprocess.Popen(command, stdout=inner, stderr=inner) as process:
        os.close(inner)
        try:
            shown = b""
            while shown.count(b"lag 0") < 2:
                shown += os.read(outer, 65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(outer)
    assert b"Traceback" not in shown


@pytest.mark.slow
def test_a_second_signal_aborts_workers_that_hang(run: Run, folder: Path) -> None:
    (folder / "flights_app.py").write_text(HANGS)
    produce(run)
    with served("--workers", 2) as (process, log):
        wait_for(lambda: event(log, "hanging"), "a handler hangs")
        pids = [line["pid"] for line in event(log, "worker.started")]
        process.send_signal(signal.SIGINT)
        wait_for(lambda: event(log, "workers.stopping"), "the signal is passed on")
        time.sleep(1.5 * SAME_SIGNAL_TIME)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
        wait_for(lambda: all(map(gone, pids)), "no worker is left", seconds=5)


def test_produce_follows_a_pipe_until_an_interrupt(run: Run, folder: Path) -> None:
    command = [sys.executable, "-m", "actorproc", "produce", "--log", "events", "--partitions", "2", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(b'{"n":1}\n{"n":2}\n{"n":')
            process.stdin.flush()
            wait_for(lambda: list((folder / "events").glob("partition=*/*.parquet")), "the lines are in the log")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            out = process.stdout.read() if process.stdout else b""
        finally:
            process.kill()
    assert out.decode() == (
        "interrupted: 2 events are in events: all of what this command read from stdin up to line 2, "
        "and nothing after it\n"
    )


def test_interrupting_produce_of_a_file_reports_its_progress(folder: Path) -> None:
    command = [sys.executable, "-m", "actorproc", "produce", "--log", "events", "--partitions", "2"]
    with subprocess.Popen([*command, "--rate", "20", "flights.jsonl"], stderr=subprocess.PIPE) as process:
        try:
            wait_for(lambda: list((folder / "events").glob("partition=*/*.parquet")), "lines are in the log")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert re.search(rb"(\d+) events are in events: all of flights.jsonl up to line \1, and nothing after it", err)


@pytest.mark.slow
def test_a_log_grows_while_a_producer_and_two_hosts_run(run: Run, folder: Path) -> None:
    flights = [b'{"tail": "N%d", "delay": %d}\n' % (n % 7, n) for n in range(150)]
    assert run("logs", "create", "events", "--partitions", 2).exit_code == 0
    command = [sys.executable, "-m", "actorproc", "produce", "--log", "events", "--key", "tail", "-"]
    with (
        served("--workers", 2, "--set", "partition_refresh_interval=0.2") as (process, _),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as producer,
    ):
        try:
            assert producer.stdin is not None
            producer.stdin.write(b"".join(flights[:50]))
            producer.stdin.flush()
            wait_for(lambda: list(folder.glob("events/partition=*/*.parquet")), "lines are in the log")
            for count, partitions in ((100, 4), (150, 8)):
                grown = run("logs", "grow", "events", "--partitions", partitions, "--yes")
                assert f"has {partitions} partitions" in grown.stdout, grown.output
                producer.stdin.write(b"".join(flights[count - 50 : count]))
                producer.stdin.flush()
            producer.stdin.close()
            assert producer.wait(60) == 0
            wait_for(lambda: len(lines(run("output", *PLACE, "--json").stdout)) >= 150, "all lines are rows")
        finally:
            producer.kill()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    rows = lines(run("output", *PLACE, "--json").stdout)
    rows.sort(key=lambda row: (int(row["_partition"]), row["_sequence"]))
    for tail in range(7):
        assert [row["delay"] for row in rows if row["tail"] == f"N{tail}"] == list(range(tail, 150, 7))
    assert {row["delay"] for row in rows if int(row["_partition"]) >= 6} >= set(range(100, 150))
    status = orjson.loads(run("status", *PLACE, "--source", "events", "--json").stdout)
    assert [partition["lag"] for partition in status["partitions"]] == [0] * 14

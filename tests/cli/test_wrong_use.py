"""Wrong use and failures: exit codes, and one line of error without a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from actorproc.storage.names import log_file
from tests.cli.conftest import APP, Run, actorproc, events
from tests.servers import S3Server

HERE = ["--source", "events", "--container", "state"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flights_app.py").write_text(APP)
    (tmp_path / "flights.jsonl").write_bytes(b"\n".join(events(20)) + b"\n")
    return tmp_path


def refused(run: Run, *arguments: object, says: str, code: int = 2) -> None:
    result = run(*arguments)
    assert says in result.stderr, result.output
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("flights_app", "write MODULE:CLASS"),
        ("flights_app.py:Delays", "write MODULE:CLASS, such as flights_app:Delays"),
        ("src/shop/orders.py", "write MODULE:CLASS, such as shop.orders:CLASS"),
        ("nowhere:Delays", "there is no module 'nowhere'"),
        ("flights_app:Delay", "did you mean Delays?"),
        ("flights_app:Xyz", "it has: BadSchema, Delays, Silent"),
        ("flights_app:Silent", "Silent has no process(self, batch, ctx)"),
        ("flights_app:BadSchema", "BadSchema: output schema 'tail strin', position 6: there is no type 'strin'"),
        ("json:dumps", "is not a class"),
        ("json:JSONDecoder", "must subclass actorproc.PartitionHandler"),
        ("actorproc.handlers:JsonRows", "output_schema"),
    ],
)
def test_serve_refuses_an_object_that_is_no_handler(run: Run, handler: str, says: str) -> None:
    refused(run, "serve", handler, *HERE, says=says)


def test_an_error_in_the_users_module_names_file_and_line(run: Run, folder: Path) -> None:
    (folder / "broken_app.py").write_text("import nothing_like_it\n")
    result = run("serve", "broken_app:Delays", *HERE)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: importing broken_app failed: ModuleNotFoundError: No module named 'nothing")
    assert "broken_app.py:1)" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_handler_definition_is_one_line(run: Run, folder: Path) -> None:
    (folder / "eager_app.py").write_text(
        "from actorproc.handlers import RecordHandler\n\nclass Eager(RecordHandler):\n    concurrency = 8\n"
        "    def process_record(self, record, ctx): ...\n"
    )
    said = "error: Eager.concurrency = 8: it needs an `async def process_record`"
    result = run("serve", "eager_app:Eager", *HERE)
    assert result.exit_code == 2
    assert re.match(said, result.stderr), result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "nope=1"], "nope = '1': there is no such setting"),
        (["--set", "commit_interval=soon"], "commit_interval = 'soon': write seconds"),
        (["--set", "lease_renew_interval=40"], "lease_expiration_interval (60 s) must be more than twice"),
        (["--set", "nope"], "--set 'nope': write --set name=value"),
        (["--option", "x=1"], "Delays has no option x; it has: none"),
        (["--start", "yesterday"], "start = 'yesterday': 'earliest', 'latest', or a time"),
        (["--start", "2013-01-01T00:00"], "a time with its zone"),
        (["--name", "a/b"], "processor name 'a/b' is not usable"),
        (["--name", ""], "processor name '' is not usable"),
        (["--host", ""], "host name '' is not usable"),
        (["--host", "a/b"], "host name 'a/b' is not usable"),
        (["--source", "kafka://x"], "write kafka://BROKER"),
        (["--source", "ftp://x"], "there is no 'ftp' source"),
        (["--container", "ftp://x"], "unknown scheme 'ftp'"),
        (["--container", "s3://"], "s3://"),
        (["--container", "./events"], "source and container are the same place, file://"),
        (["--container", ".", "--name", "events"], "/events, and the source is at file://"),
        (["--container", "events/x"], "neither may be, or lie in, the other. Give another container"),
        (["--source", "state/Delays/events"], "neither may be, or lie in, the other"),
        (["--source", "actorproc+file://state/Other", "--container", "state/Other/x"], "neither may be, or lie in"),
        (["--config", "nowhere.toml"], "cannot read the settings file nowhere.toml"),
    ],
)
def test_serve_names_a_wrong_option_its_value_and_the_allowed_ones(run: Run, options: list[str], says: str) -> None:
    refused(run, "serve", "flights_app:Delays", *HERE, *options, says=says)


def test_a_misspelt_setting_in_the_file_is_refused(run: Run, folder: Path) -> None:
    (folder / "actorproc.toml").write_text('comit_interval = "1s"\n')
    refused(run, "serve", "flights_app:Delays", *HERE, says="did you mean commit_interval?")


def test_an_error_in_shared_names_handler_and_line(run: Run, folder: Path) -> None:
    run("produce", "--log", "events", "--partitions", "2", "flights.jsonl")
    shared = (
        "class Sharing(Delays):\n    @classmethod\n    def shared(cls, options):\n        raise OSError('no pool')\n"
    )
    (folder / "sharing_app.py").write_text(APP + shared)
    says = "Sharing.shared failed: OSError: no pool (in Sharing.shared, "
    refused(run, "serve", "sharing_app:Sharing", *HERE, "--until-end", says=says, code=1)


@pytest.mark.parametrize("failing", ["def __init__(self)", "async def opened(self, ctx)"])
def test_an_error_in_init_or_opened_names_method_and_line(run: Run, folder: Path, failing: str) -> None:
    run("produce", "--log", "events", "--partitions", "1", "flights.jsonl")
    (folder / "failing_app.py").write_text(
        f"{APP}class Failing(Delays):\n    {failing}:\n        raise OSError('no')\n"
    )
    quick = ["--until-end", "--set", "restart_backoff=1ms"]
    served = actorproc("--log-level", "error", "serve", "failing_app:Failing", *HERE, *quick, cwd=folder)
    assert served.returncode == 1
    phase = failing.partition("(")[0].split()[-1]
    assert f"OSError: no (in Failing.{phase}, {folder}/failing_app.py:" in served.stderr
    assert "Traceback" not in served.stderr


def test_serve_without_a_log_says_how_to_make_one(run: Run) -> None:
    refused(run, "serve", "flights_app:Delays", *HERE, "--until-end", says="actorproc produce --log")


@pytest.mark.parametrize(
    "arguments", [["nope"], ["status", "--name", "x"], ["serve"], ["output", "--limit", "0"], ["serve", "a", "b"]]
)
def test_a_malformed_command_line_is_one_error_line(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"error: .*\n", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["serve", "flights_app:Delays", *HERE, "--container", ""], "--container"),
        (["serve", "flights_app:Delays", *HERE, "--source", " "], "--source"),
        (["produce", "--log", "", "flights.jsonl"], "--log"),
        (["trim", "--log", ""], "--log"),
        (["status", "--name", "x", "--container", "state", "--source", ""], "--source"),
    ],
)
def test_an_empty_url_is_refused_with_its_option(run: Run, arguments: list[str], option: str) -> None:
    result = run(*arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"error: {option}: it is empty; give a folder or a URL" in result.stderr


# produce


def test_produce_names_the_line_without_the_key(run: Run, folder: Path) -> None:
    (folder / "bad.jsonl").write_bytes(b'{"tail":"a"}\n\n{"x":1}\n{"tail":"b"}\n')
    command = ["produce", "--log", "events", "--partitions", "2", "--key", "tail", "bad.jsonl"]
    refused(run, *command, says="bad.jsonl: line 3: no field 'tail'")
    (folder / "bad.jsonl").write_bytes(b'{"tail":"a"}\nno json\n')
    refused(run, *command, says="bad.jsonl: line 2: not JSON")


@pytest.mark.parametrize("command", [["produce", "--partitions", "2", "flights.jsonl"], ["trim"], ["readers", "list"]])
def test_a_processors_output_is_refused_as_a_log(run: Run, folder: Path, command: list[str]) -> None:
    for output in ("actorproc+state/Delays", f"actorproc+file://{folder}/state/Delays/"):
        container = output.removeprefix("actorproc+").removesuffix("/").removesuffix("/Delays")
        says = f"{output!r} is a processor's output: that is a source, and no log or container."
        refused(run, *command, "--log", output, says=says)
        refused(run, *command, "--log", output, says=f"give --name Delays --container {container}")
    assert sorted(path.name for path in folder.iterdir()) == ["flights.jsonl", "flights_app.py"]


def test_produce_from_a_closed_stdin_says_so(folder: Path) -> None:
    command = [sys.executable, "-m", "actorproc", "produce", "--log", "events", "--partitions", "1", "-"]
    result = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr == "error: cannot read -: stdin is closed\n"


@pytest.mark.parametrize("piped", [False, True])
def test_produce_with_a_wrong_key_appends_nothing(run: Run, folder: Path, piped: bool) -> None:
    lines = '\n  \n{"id":1,"customer":"a"}\n{"id":2,"customer":"b"}'
    (folder / "orders.jsonl").write_text(lines)
    given: dict[str, Any] = {"input": lines} if piped else {}
    file = "-" if piped else "orders.jsonl"
    command = ["produce", "--log", "orders", "--partitions", "4", file]
    result = actorproc(*command, "--key", "custmer", cwd=folder, **given)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{file}: line 3: no field 'custmer' in " in result.stderr
    assert "; did you mean customer? there are: id, customer.\nNothing was appended. Fix the line" in result.stderr
    right = run("produce", "--log", "orders", "--partitions", "4", "orders.jsonl", "--key", "customer")
    assert "2 events appended to orders" in right.stdout, right.stderr


def test_produce_says_how_to_go_on_after_a_bad_line(run: Run, folder: Path) -> None:
    (folder / "bad lines").write_bytes(b'{"tail":"a"}\n\n{"tail":"b"}\n{"x":1}\n{"tail":"c"}\n')
    told = run("produce", "--log", "events", "--partitions", "1", "--key", "tail", "bad lines").stderr
    assert "2 events are in events: all of bad lines up to line 3, and nothing after it. Fix the line, or give " in told
    assert told.endswith("and run the command again with --from-line 4\n")
    given = ["--key", "tail", "--from-line", 4, "--on-bad-line", "skip"]
    result = run("produce", "--log", "events", *given, "bad lines")
    assert "1 event appended" in result.stdout, result.output


def test_produce_skips_bad_lines_with_on_bad_line_skip(run: Run, folder: Path) -> None:
    (folder / "bad.jsonl").write_bytes(b'{"tail":"a"}\nno json\n{"x":1}\n{"tail":"b"}\n{"tail":null}\n')
    command = ["produce", "--log", "events", "--partitions", "2", "--key", "tail", "--on-bad-line", "skip", "bad.jsonl"]
    result = run(*command)
    assert result.exit_code == 0
    assert "3 events appended to events" in result.stdout
    assert "2 bad lines skipped" in result.stdout
    assert "1 without a key" in result.stdout
    assert result.stderr.splitlines()[0].startswith("bad.jsonl: line 2: not JSON (")
    assert result.stderr.splitlines()[1] == "bad.jsonl: line 3: no field 'tail' in {\"x\":1}; there are: x"


def test_produce_keeps_bad_lines_with_on_bad_line_keep(run: Run, folder: Path) -> None:
    (folder / "bad.jsonl").write_bytes(b'{"tail":"a"}\n' + b"no json\n" * 12)
    command = ["produce", "--log", "events", "--partitions", "2", "--key", "tail", "--on-bad-line", "keep", "bad.jsonl"]
    result = run(*command)
    assert "13 events appended to events" in result.stdout
    assert "12 bad lines appended without a key" in result.stdout
    assert result.stderr.count("bad.jsonl: line ") == 10
    assert result.stderr.splitlines()[-1] == "... and 2 more bad lines"


def test_produce_without_a_key_takes_any_line(run: Run, folder: Path) -> None:
    (folder / "text.txt").write_bytes(b"no json\n\xff\xfe\n")
    assert "2 events appended" in run("produce", "--log", "events", "--partitions", "2", "text.txt").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--partitions", "3", "flights.jsonl"], "has 2 partitions, not 3"),
        (["nowhere.jsonl"], "cannot read nowhere.jsonl: No such file or directory"),
        (["."], "cannot read .: Is a directory"),
    ],
)
def test_produce_refuses_another_partition_count_and_unreadable_files(
    run: Run, arguments: list[str], says: str
) -> None:
    run("produce", "--log", "events", "--partitions", "2", "flights.jsonl")
    refused(run, "produce", "--log", "events", *arguments, says=says)


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce", "--log", "memory://x", "--partitions", "2", "flights.jsonl"],
        ["serve", "flights_app:Delays", "--source", "memory://x", "--container", "state", "--workers", "2"],
        ["serve", "flights_app:Delays", "--source", "actorproc+memory://x/P", "--container", "state"],
        ["serve", "flights_app:Delays", *HERE, "--spark", "app:f", "--spark-checkpoint", "memory://x"],
        ["spark", "app:f", "--name", "P", "--container", "state", "--checkpoint", "memory://x"],
        ["spark", "app:f", "--name", "P", "--container", "state", "--checkpoint", "c", "--path", "memory://x"],
        ["status", "--name", "P", "--container", "memory://x"],
        ["dead-letters", "replay", "--name", "P", "--container", "state", "--source", "memory://x"],
        ["readers", "add", "r", "--log", "events", "--spark", "memory://x"],
        ["readers", "add", "r", "--log", "events", "--processor", "memory://x/P"],
        ["trim", "--log", "memory://x"],
        ["doctor", "memory://x"],
    ],
)
def test_a_url_in_memory_is_refused_by_every_command(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert re.search(r"memory://x\S* exists in one process only, for tests in Python; give a folder", result.stderr)
    assert result.stdout == ""


def test_an_unknown_scheme_is_no_reason_to_recommend_memory(run: Run) -> None:
    for place in ("mem://x", "kafka://x"):
        told = run("serve", "flights_app:Delays", "--source", place, "--container", "state").stderr
        told += run("status", "--name", "P", "--container", place).stderr
        assert "s3://" in told
        assert "memory" not in told


def test_produce_into_no_log_without_partitions_says_how(run: Run) -> None:
    refused(run, "produce", "--log", "nothing", "flights.jsonl", says="--partitions 8")


def test_a_file_is_no_place_for_objects(run: Run) -> None:
    says = "is a file, or lies below one; give a folder"
    refused(run, "produce", "--log", "flights.jsonl", "--partitions", "2", "flights.jsonl", says=says)
    refused(run, "doctor", "flights.jsonl", says=says)
    refused(run, "status", "--name", "Delays", "--container", "flights.jsonl/x", says=says)


# damage and stores


def test_a_corrupt_log_file_is_named_and_stops_its_partition(run: Run, folder: Path) -> None:
    run("produce", "--log", "events", "--partitions", "1", "flights.jsonl")
    (folder / "events" / log_file("0", 0)).write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    served = actorproc("serve", "flights_app:Delays", *HERE, "--until-end", cwd=folder)
    assert served.returncode == 1
    assert log_file("0", 0) in served.stderr
    assert "Traceback" not in served.stderr


@pytest.mark.servers
@pytest.mark.slow
async def test_an_unusable_bucket_is_an_error_without_a_traceback(seaweedfs: S3Server, run: Run, folder: Path) -> None:
    url = await seaweedfs.new_url()
    good = [part for name, value in seaweedfs.settings.items() for part in ("--set", f"{name}={value}")]

    def doctor(*arguments: object, code: int = 2) -> str:
        result = run("doctor", *arguments, "--set", "store_patience=0.5")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return str(result.stderr)

    def all_of_it() -> None:
        assert run("doctor", url, *good).exit_code == 0
        assert "no-such-bucket-here" in doctor("s3://no-such-bucket-here/state", *good)
        wrong = ["--set", "s3_secret_key=wrong"]
        assert "secret" in doctor(url, *good, *wrong).lower()
        dead = ["--set", "s3_endpoint=http://127.0.0.1:9"]
        assert "127.0.0.1:9" in doctor(url, *good, *dead, code=1)
        served = actorproc(
            "serve", "flights_app:Delays", "--source", f"{url}/events", "--container", "s3://no-such-bucket-here/state",
            "--workers", "2", *good, cwd=folder,
        )  # fmt: skip
        assert served.returncode == 2, served.stderr
        assert "NoSuchBucket" in served.stderr
        assert "worker.died" not in served.stderr, "starting it again would not help"

    await anyio.to_thread.run_sync(all_of_it)


# the whole


def test_version_and_help_answer_without_the_heavy_parts(folder: Path) -> None:
    heavy = ("pyarrow", "pydantic", "aiobotocore")
    code = f"import sys; from actorproc.cli import app; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert loaded.stdout.strip() == "[]"


def test_debug_shows_the_traceback_and_keeps_the_exit_code(run: Run) -> None:
    result = run("--debug", "serve", "nowhere:X", *HERE)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_a_root_option_behind_a_command_is_refused(run: Run) -> None:
    refused(
        run,
        "status",
        "--log-level",
        "warning",
        says="--log-level goes before the command: actorproc --log-level ... COMMAND",
    )

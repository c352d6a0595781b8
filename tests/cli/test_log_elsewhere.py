"""Logs in another account than the container: `--source-option` has the keys, for each command that reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from actorproc import Producer, Settings
from actorproc.errors import UsageError
from actorproc.sources import open_source
from tests.cli.conftest import APP, QUICK_OPTIONS, Run, events, every_command
from tests.servers import S3Server

WRONG = {
    "s3_endpoint": "http://127.0.0.1:9",
    "s3_access_key": "of-the-container",
    "s3_secret_key": "of-the-container",
    "store_patience": "0.2",
    "store_timeout": "5",
}


def options(settings: dict[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--source-option", f"{name}={value}")]


async def new_log(server: S3Server) -> str:
    url = await server.new_url()
    flights = events(40)
    async with Producer(url, partitions=2, settings=Settings.load(**server.settings)) as producer:
        await producer.send_many(flights, keys=[orjson.loads(flight)["tail"] for flight in flights])
    return url


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run) -> Callable[[dict[str, str]], None]:
    """Sets the settings of the container. Handlers are found in `app.py`."""
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)

    def use(settings: dict[str, str]) -> None:
        for name, value in settings.items():
            monkeypatch.setenv(f"ACTORPROC_{name.upper()}", value)

    return use


@pytest.mark.servers
def test_each_command_reads_a_log_with_the_keys_of_the_log(
    run: Run, environment: Any, seaweedfs: S3Server, tmp_path: Path
) -> None:
    url = anyio.run(new_log, seaweedfs)
    environment(WRONG)
    (tmp_path / "key").write_text(seaweedfs.secret_key)
    source = ["--source", url, *options(seaweedfs.settings | {"s3_secret_key": "@key"})]
    place = ["--name", "Delays", "--container", "state"]
    for command in (
        ["serve", "app:Delays", *source, *place, "--until-end", *QUICK_OPTIONS],
        ["status", *place, *source],
        ["explain", "0", *place, *source],
        ["trace", "0:1", *place, *source],
        ["peek", *source],
        ["dead-letters", "replay", *place, *source],
        ["dead-letters", "replay", *place, "--into", *source[1:]],
        ["readers", "list", "--log", *source[1:]],
        ["readers", "add", "by-hand", "--at", "1", "--log", *source[1:]],
        ["trim", "--log", *source[1:]],
        ["readers", "remove", "by-hand", "--log", *source[1:]],
        ["verify", *place, "--log", *source[1:]],
        ["checkpoints", "reset", "--to", "earliest", "--yes", *place, *source],
        ["checkpoints", "undo", "--yes", *place, *source],
    ):
        done = run(*command)
        assert done.exit_code == 0, (command, done.output)
        without = [part for part in command if not part.startswith("s3_") and part != "--source-option"]
        assert run(*without).exit_code != 0 or command[0] == "trace", command  # which shows the rest all the same


@pytest.mark.slow
@pytest.mark.servers
def test_a_log_and_its_container_are_on_two_servers(
    run: Run, environment: Any, seaweedfs: S3Server, minio: S3Server
) -> None:
    log, container = anyio.run(new_log, seaweedfs), anyio.run(minio.new_url)
    environment(minio.settings)
    source = ["--source", log, *options(seaweedfs.settings)]
    place = ["--name", "Delays", "--container", container]
    served = run("serve", "app:Delays", *source, *place, "--until-end", *QUICK_OPTIONS)
    assert served.exit_code == 0, served.output
    status = orjson.loads(run("status", *place, *source, "--json").stdout)
    assert [part["lag"] for part in status["partitions"]] == [0, 0]
    onward = ["--source", f"actorproc+{container}/Delays", *options(minio.settings)]
    environment(seaweedfs.settings)
    assert "N1" in run("peek", *onward).stdout


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ("events", "it has none"),
        ("memory://events", "it has none"),
        ("s3://bucket/events", "it has s3_endpoint, s3_region, s3_access_key, s3_secret_key, s3_path_style"),
        ("actorproc+state/Delays", "it has none"),
        ("actorproc+s3://bucket/state/Delays", "it has s3_endpoint, "),
        ("kinesis://eu-west-1/events", "it has access_key, "),
        ("cosmos://account/database/container", "it has "),
        ("eventhubs+amqp://namespace/hub", "it has "),
    ],
)
def test_an_unknown_option_names_the_known_ones(source: str, known: str) -> None:
    with pytest.raises(UsageError, match="there is no source option 'foo'") as refused:
        open_source(source, settings=Settings.load(source_options={"foo": "bar"}))
    assert known in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"s3_access_key": "alone"}, "s3_access_key and s3_secret_key come together"),
        ({"s3_path_style": "perhaps"}, "source option s3_path_style = 'perhaps'"),
        ({"s3_endpoint": "http://me:hunter2@host"}, "credentials"),
        (
            {"s3_secret_key": "@gone"},
            "source option s3_secret_key: begins with @, and the file that it names cannot be read",
        ),
        ({"s3_acces_key": "x"}, "did you mean s3_access_key?"),
        ({"store_timeout": "1"}, "there is no source option 'store_timeout'"),
    ],
)
def test_a_wrong_option_of_a_log_is_named_without_its_secret(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_source("s3://me:hunter2@bucket/log", settings=Settings.load(source_options=given))
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_an_object_of_ones_own_takes_no_options(run: Run, environment: Any, tmp_path: Path) -> None:
    (tmp_path / "own_source.py").write_text("from actorproc.sources import open_source\nlog = open_source('events')\n")
    refused = run("peek", "--source", "own_source:log", "--source-option", "foo=bar")
    assert refused.exit_code == 2
    assert "there is no source option 'foo': it is an object of your own" in refused.output


@pytest.mark.parametrize(
    "command",
    [["trim"], ["readers", "list"], ["readers", "remove", "x"], ["readers", "add", "x", "--at", "1"]],
)
def test_an_option_of_a_log_needs_the_log(run: Run, environment: Any, command: list[str]) -> None:
    refused = run(*command, "--name", "D", "--container", "state", "--source-option", "s3_access_key=x")
    assert refused.exit_code == 2
    assert "--source-option is for a log: give --log, too" in refused.output


def test_options_of_a_second_log_are_those_of_its_store(run: Run, environment: Any, tmp_path: Path) -> None:
    """Options of the source in the file are not for that log: it may be another kind of store."""
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(events(3)))
    assert run("produce", "--log", "events", "--partitions", "1", "events.jsonl").exit_code == 0
    place = ["--name", "Delays", "--container", "state"]
    assert run("serve", "app:Delays", "--source", "events", *place, "--until-end", *QUICK_OPTIONS).exit_code == 0
    (tmp_path / "actorproc.toml").write_text('[source_options]\n"sasl.password" = "x"\n')
    for command in (["dead-letters", "replay", *place, "--into", "events"], ["verify", *place, "--log", "events"]):
        done = run(*command)
        assert done.exit_code == 0, done.output
        refused = run(*command, "--source-option", "s3_access_key=x")
        assert refused.exit_code == 2
        assert "there is no source option 's3_access_key' (it has none)" in refused.output


def test_every_command_with_a_source_takes_its_options() -> None:
    for path, command in every_command():
        given = {option for parameter in command.params for option in parameter.opts}
        has_two_places = "--source" in given or ("--log" in given and path not in (["audit"], ["produce"]))
        assert has_two_places == ("--source-option" in given), path

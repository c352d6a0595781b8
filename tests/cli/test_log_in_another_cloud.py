"""A log in Google Cloud Storage and a container in Azure Blob Storage: each command finds both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from actorproc import Producer, Settings
from tests.cli.conftest import APP, QUICK_OPTIONS, Run, events
from tests.connectors.gcs.server import GcsServer
from tests.connectors.shared.azure_storage import BlobServer

pytestmark = pytest.mark.servers


async def new_log(server: GcsServer) -> str:
    url = await server.new_url()
    flights = events(40)
    async with Producer(url, partitions=2, settings=Settings.load(**server.settings)) as producer:
        await producer.send_many(flights, keys=[orjson.loads(flight)["tail"] for flight in flights])
    return url


@pytest.fixture
def sides(
    gcs: GcsServer, azurite: BlobServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[list[str], list[str]]:
    """Options of source and container. The environment has the settings of the container alone."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "key").write_text(azurite.settings["az_account_key"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACTORPROC_AZ_ENDPOINT", azurite.settings["az_endpoint"])
    monkeypatch.setenv("ACTORPROC_AZ_ACCOUNT_KEY", "@key")
    log, container = anyio.run(new_log, gcs), anyio.run(azurite.new_url)
    options = [f"{name}={value}" for name, value in gcs.settings.items()]
    source = ["--source", log, *(part for option in options for part in ("--source-option", option))]
    return source, ["--name", "Delays", "--container", container]


def test_each_command_finds_log_and_container(run: Run, sides: tuple[list[str], list[str]]) -> None:
    source, place = sides
    for command in (
        ["serve", "app:Delays", *source, *place, "--until-end", *QUICK_OPTIONS],
        ["status", *place, *source],
        ["explain", "0", *place, *source],
        ["peek", *source],
        ["readers", "list", "--log", *source[1:]],
        ["trim", "--log", *source[1:]],
        ["verify", *place, "--log", *source[1:]],
        ["doctor", place[-1]],
        ["output", *place],
    ):
        done = run(*command)
        assert done.exit_code == 0, (command, done.output)


def test_a_container_may_be_given_as_spark_spells_it(run: Run, sides: tuple[list[str], list[str]]) -> None:
    source, place = sides
    account, _, path = place[-1].removeprefix("az://").partition("/")
    container, _, prefix = path.partition("/")
    other = [*place[:-1], f"abfss://{container}@{account}.dfs.core.windows.net/{prefix}"]
    assert run("serve", "app:Delays", *source, *other, "--until-end", *QUICK_OPTIONS).exit_code == 0
    shown: Any = run("output", *place)
    assert shown.exit_code == 0
    assert shown.output == run("output", *other).output != ""


def test_a_container_may_not_be_in_the_log_however_it_is_spelled(run: Run, sides: tuple[list[str], list[str]]) -> None:
    _, place = sides
    account, _, path = place[-1].removeprefix("az://").partition("/")
    container, _, prefix = path.partition("/")
    log = f"abfss://{container}@{account}.dfs.core.windows.net/{prefix}"
    refused = run("serve", "app:Delays", "--source", log, *place)
    assert refused.exit_code == 2
    assert "source and container are the same place" in refused.output

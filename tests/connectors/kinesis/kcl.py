"""The Kinesis Client Library (KCL) itself, from Maven Central: its MultiLangDaemon, and a record processor for it.

with kcl(folder, server, dynamo_url, "flights", "application"):
    ...    # until rows(folder) has them all
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.connectors.kinesis.servers import REGION, KinesisServer
from tests.servers import CACHE, Unavailable, _die_with_parent

_VERSION = "1.15.3"
"""The last one that speaks HTTP 1.1, as the servers of the tests do. Later ones keep the same leases."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>kcl</artifactId><version>1</version><dependencies><dependency>
<groupId>com.amazonaws</groupId><artifactId>amazon-kinesis-client</artifactId><version>{_VERSION}</version>
</dependency></dependencies></project>"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_DAEMON = "com.amazonaws.services.kinesis.multilang.MultiLangDaemon"


class Row(NamedTuple):
    """A record that was processed, and when (seconds since 1970)."""

    event: Any
    at: float


def rows(folder: Path) -> list[Row]:
    """All rows in the folder of a `kcl`."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines(keepends=True)]
    return [Row(*json.loads(line)) for line in lines if line.endswith("\n")]


@contextmanager
def kcl(
    folder: Path, server: KinesisServer, dynamo: str, stream: str, application: str,
    module: str = "tests.connectors.kinesis.kcl",
    **settings: object,
) -> Iterator[None]:  # fmt: skip
    """A worker that reads until the block ends.

    Args:
        module: a record processor, started as `python -m MODULE FOLDER` for each shard.
        settings: of the library, by name.

    Raises:
        Unavailable: Java or Maven is missing.
    """
    folder.mkdir(exist_ok=True)
    properties = {
        "executableName": f"{sys.executable} -m {module} {folder}", "streamName": stream,
        "applicationName": application, "AWSCredentialsProvider": "DefaultAWSCredentialsProviderChain",
        "processingLanguage": "python", "initialPositionInStream": "TRIM_HORIZON", "regionName": REGION,
        "kinesisEndpoint": f"http://127.0.0.1:{server.port}", "dynamoDBEndpoint": dynamo, "metricsLevel": "NONE",
    }  # fmt: skip
    lines = [f"{name} = {value}" for name, value in (properties | settings).items()]
    (folder / "kcl.properties").write_text("\n".join(lines))
    login = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_CBOR_DISABLE": "true"}
    with (folder / "kcl.log").open("wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", f"{_jars()}/*:{folder}", _DAEMON, "kcl.properties"],
            env=os.environ | login, stdout=log, stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (one call of prctl)
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _jars() -> Path:
    """The library and its dependencies, fetched once per machine."""
    place = CACHE / f"kcl-{_VERSION}"
    if not place.exists():
        for command in ("java", "mvn"):
            if shutil.which(command) is None:
                raise Unavailable(f"the Kinesis Client Library needs {command}, which is not on PATH")
        fetching = CACHE / f"kcl-{os.getpid()}"
        fetching.mkdir(parents=True)
        (fetching / "pom.xml").write_text(_POM)
        fetch = ["mvn", "-q", "-B", _COPY, f"-DoutputDirectory={fetching}"]
        done = subprocess.run(fetch, cwd=fetching, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Maven cannot fetch the Kinesis Client Library: {done.stdout[-300:]}")
        with suppress(OSError):  # another run was first
            fetching.rename(place)
        shutil.rmtree(fetching, ignore_errors=True)
    return place


def speak(process: Callable[[list[bytes]], None]) -> None:
    """Be a record processor: call `process` with the records, and checkpoint after each call.

    https://github.com/awslabs/amazon-kinesis-client/blob/v1.x/src/main/java/com/amazonaws/services/kinesis/multilang/package-info.java
    """
    for message in _messages():
        action = message["action"]
        if action == "processRecords":
            process([b64decode(record["data"]) for record in message["records"]])
        if action == "processRecords" or (action == "shutdown" and message["reason"] == "TERMINATE"):
            _say({"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None})
            next(_messages())
        _say({"action": "status", "responseFor": action})


def _messages() -> Iterator[Any]:
    while line := sys.stdin.readline():
        if line.strip():
            yield json.loads(line)


def _say(message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    """Write a line for each record, whose data are JSON."""
    with Path(sys.argv[1], f"{os.getpid()}.jsonl").open("a") as file:

        def process(records: list[bytes]) -> None:
            file.writelines(json.dumps(Row(json.loads(data), time.time())) + "\n" for data in records)
            file.flush()

        speak(process)


if __name__ == "__main__":
    main()

"""A real schema registry for tests: Apicurio, which has Confluent's API, from Maven Central, on a free loopback port.

    with registry(folder) as server:
        client = SchemaRegistryClient({"url": server.url})

A registry that cannot be had on this machine raises `Unavailable`, whose text is the reason to skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

from tests.servers import CACHE, Unavailable, free_ports

VERSION = "2.6.13.Final"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_PLACE = CACHE / f"apicurio-{VERSION}"
_JAR = f"apicurio-registry-app-{VERSION}-runner.jar"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>registry</artifactId><version>1</version><packaging>pom</packaging></project>"""
_START = 90.0


@dataclass
class Registry:
    """A registry, running or stopped; its schemas stay."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}", "-jar", _JAR]
        data = {"REGISTRY_DATASOURCE_URL": f"jdbc:h2:file:{self.folder / 'data'}"}
        with (self.folder / "registry.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=_PLACE, env={**os.environ, **data}, stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + _START
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "registry.log").read_text()[-2000:])
            time.sleep(0.1)

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_ready(self) -> bool:
        health = f"http://127.0.0.1:{self.port}/health/ready"
        with suppress(URLError, OSError), urllib.request.urlopen(health, timeout=5) as reply:
            return bool(reply.status == 200)
        return False


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """A registry that runs until the block ends. Raises `Unavailable` where Java or Maven is missing."""
    _fetch()
    [port] = free_ports(1)
    server = Registry(folder, port)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _fetch() -> None:
    """The registry's files, once per machine."""
    for command in ("java", "mvn"):
        if shutil.which(command) is None and (command == "java" or not _PLACE.exists()):
            raise Unavailable(f"the schema registry needs {command}, which is not on PATH")
    if _PLACE.exists():
        return
    fetched = _PLACE.parent / f"apicurio-{os.getpid()}"
    fetch = ["mvn", "-q", "-B", "dependency:unpack", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={fetched}"]
    fetched.mkdir(parents=True, exist_ok=True)
    (fetched / "pom.xml").write_text(_POM)  # Maven keeps its notes beside it
    done = subprocess.run(fetch, cwd=fetched, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"Maven cannot fetch the schema registry {VERSION}: {done.stdout[-300:]}")
    with suppress(OSError):  # another run was faster
        fetched.rename(_PLACE)

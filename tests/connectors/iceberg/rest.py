"""Iceberg's own REST catalog, from Maven, as a child of this process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import Unavailable, free_ports, running

_HERE = Path(__file__).parent
_JARS = Path.home() / ".cache" / "actorproc-tests" / "iceberg-rest-1.10.1"


def _jars() -> Path:
    """The jars, fetched once per machine."""
    if not _JARS.exists():
        maven = shutil.which("mvn")
        if maven is None or shutil.which("java") is None:
            raise Unavailable("Iceberg's REST catalog needs Maven and Java")
        fetched = _JARS.with_name(f"{_JARS.name}-{free_ports(1)[0]}")
        where = [f"-DoutputDirectory={fetched}", "-DincludeScope=runtime"]
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(_HERE / "iceberg-rest.pom.xml"), "dependency:copy-dependencies", *where],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"Maven does not fetch Iceberg's REST catalog: {done.stdout[-500:]}")
        if not _JARS.exists():
            fetched.replace(_JARS)  # whole or not at all: another run may be fetching too
    return _JARS


@contextmanager
def rest_catalog(folder: Path, **properties: str) -> Iterator[str]:
    """The URL of a catalog that keeps its tables in a SQLite file in `folder`."""
    jars = _jars()
    kept = {"uri": f"jdbc:sqlite:{folder}/rest.db", "warehouse": f"file://{folder}/warehouse", **properties}

    def command() -> tuple[list[str], str, str]:
        port, endpoint = (found := free_ports(1)[0]), f"http://127.0.0.1:{found}"
        java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(_HERE / "IcebergRest.java")]
        return [*java, str(port), *(f"{k}={v}" for k, v in kept.items())], endpoint, f"{endpoint}/v1/config"

    with running("Iceberg's REST catalog", command, folder, {}) as endpoint:
        yield endpoint

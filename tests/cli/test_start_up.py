"""A command imports nothing that it does not need. Facts, not times: each import here costs 20 to 500 ms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from actorproc import Producer
from tests.routes.rooms import ROOT
from tests.routes.serve import serve_start

OPTIONAL = {
    "aiobotocore", "aiohttp", "azure", "botocore", "confluent_kafka", "google", "httpx", "jsonschema_rs", "pandas",
    "prometheus_client", "proton", "ptars", "pyspark", "starlette", "uvicorn", "yaml",
}  # fmt: skip
"""Of services, formats and parts that a folder and the built-in log do without. pyarrow imports pandas at a touch."""

HEAVY = OPTIONAL | {"anyio", "asyncio", "msgspec", "numpy", "orjson", "pyarrow", "rich", "structlog"}

WINGS = ("admin", "connectors", "demo", "formats", "server", "simulation", "spark", "stores.s3", "testing")

HELP = """
import contextlib, io, sys
import typer
from actorproc.cli import app

root = typer.main.get_command(app)
for name in root.list_commands(None):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        app([name, "--help"])
    assert "Usage" in shown.getvalue(), name
"""

LOOK = """
import contextlib
from actorproc.cli import app

for line in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        app(line.split())
"""


def imported(code: str, folder: Path, *arguments: str) -> set[str]:
    """The packages of others that a fresh interpreter has imported after `code`."""
    code = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


def test_the_help_of_every_command_imports_nothing_heavy(tmp_path: Path) -> None:
    found = imported(HELP, tmp_path)
    assert "typer" in found
    assert found & HEAVY == set()


async def test_commands_that_look_into_a_folder_import_no_other_service(tmp_path: Path) -> None:
    async with Producer(tmp_path / "log", partitions=1):
        pass
    place = "--name N --container state"
    lines = [f"status {place}", "logs list log", "doctor state", "peek --source log", f"dead-letters list {place}"]
    found = imported(LOOK, tmp_path, *lines)
    assert "pyarrow" in found
    assert found & (OPTIONAL | {"structlog"}) == set()


def test_serve_on_a_folder_imports_neither_services_nor_wings() -> None:
    start = serve_start(runs=0)
    packages = {name.partition(".")[0] for name in start.modules}
    assert "pyarrow" in packages
    assert packages & OPTIONAL == set()
    wings = [name for name in start.imported if name.removeprefix("actorproc.").startswith(WINGS)]
    assert wings == []
    # One of them, `backoff`, only where two writes of the store's trial meet.
    assert len(start.entered) <= 95, "`python -m tests.routes --serve` lists them"

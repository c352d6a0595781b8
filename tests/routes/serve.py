"""The start of `actorproc serve`: the files that run, and the CPU time that passes, before its supervisor runs.

Each figure comes from a process of its own, which ends where the supervisor would begin.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import patch

from tests.routes.rooms import ROOT

HANDLER = """
from actorproc import RecordHandler

class Amounts(RecordHandler):
    output_schema = "amount double"

    def process_record(self, record, ctx):
        return {"amount": record.json()["amount"]}
"""


@dataclass(frozen=True)
class Start:
    """The needs of a start-up.

    Attributes:
        entered: files in which a function runs, in order of first entry. The code of a module or class does not count.
        imported: modules of the package that are imported.
        modules: all imported modules, of other packages as well.
        cpu: seconds, with those of the interpreter.
        bare_cpu: seconds that the interpreter alone takes.
    """

    entered: list[str]
    imported: list[str]
    modules: list[str]
    cpu: float
    bare_cpu: float


def serve_start(runs: int = 3) -> Start:
    """Start `serve` and look. The CPU times are those of the quickest of `runs`; 0 without any."""
    with tempfile.TemporaryDirectory(prefix="actorproc-route-") as name:
        folder = Path(name)
        (folder / "amounts.py").write_text(HANDLER)
        _child(folder, "create_log")
        found = json.loads(_child(folder, "trace"))
        cpu = min((float(_child(folder, "measure")) for _ in range(runs)), default=0.0)
        bare = min((float(_child(folder, "measure_bare")) for _ in range(runs)), default=0.0)
    return Start(found["entered"], found["imported"], found["modules"], cpu, bare)


def _child(folder: Path, function: str) -> str:
    """The output of a function of this file that runs in a process of its own."""
    code = f"from tests.routes import serve; serve.{function}()"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Compiled files are written, or each start would compile the package, which a user's start does not.
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("ACTORPROC_") and key != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**environment, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{function} failed: {done.stderr}")
    return done.stdout


def create_log() -> None:
    """An empty log."""
    import anyio

    from actorproc import Producer

    async def create() -> None:
        async with Producer("log", partitions=1):
            pass

    anyio.run(create)


def trace() -> None:
    """Print the files that are entered, and end before the supervisor runs."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not (module == "actorproc" or module.startswith("actorproc.")):
            return
        if module == "actorproc.host.supervisor" and code.co_qualname == "Supervisor.run":
            sys.setprofile(None)
            imported = [name for name in sys.modules if name.partition(".")[0] == "actorproc"]
            _end({"entered": list(entered), "imported": sorted(imported), "modules": list(sys.modules)})
        # The code of a module or class has no fast locals; comprehensions and lambdas in it are named <...>, as is the
        # file of a method that `dataclass` writes.
        if code.co_flags & inspect.CO_OPTIMIZED and "<" not in (code.co_name[0], code.co_filename[0]):
            entered[os.path.relpath(frame.f_globals["__file__"], ROOT)] = None

    threading.setprofile(note)
    sys.setprofile(note)
    _serve()


def measure() -> None:
    """Print the CPU seconds until the supervisor would run."""
    from actorproc.host.supervisor import Supervisor

    async def run(_: Supervisor) -> None:
        _end(time.process_time())

    with patch.object(Supervisor, "run", run):
        _serve()


def measure_bare() -> None:
    """Print the CPU seconds of the interpreter and the standard modules that this file imports."""
    _end(time.process_time())


def _serve() -> None:
    from actorproc.__main__ import main

    sys.argv = ["actorproc", "serve", "amounts:Amounts", "--source", "log", "--container", "state"]
    main()


def _end(found: Any) -> NoReturn:
    """Print, and leave at once."""
    os.write(1, json.dumps(found).encode())
    os._exit(0)

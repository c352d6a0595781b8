"""Environments with other versions of PySpark, made once per machine, outside the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import REQUIRED, Unavailable
from tests.spark.conftest import ROOT

_CACHE = Path("~/.cache/actorproc-pyspark").expanduser()


def environment(pyspark: str) -> Path:
    """The Python of an environment with this version of PySpark and all else that the tests need, but not the project:
    that is found through PYTHONPATH, which `variables` sets. Where it cannot be made, the test is skipped."""
    try:
        return _made(pyspark)
    except Unavailable as reason:
        if REQUIRED:
            raise
        pytest.skip(str(reason))


def _made(pyspark: str) -> Path:
    folder = _CACHE / f"{pyspark}-python{sys.version_info.major}.{sys.version_info.minor}"
    project = ROOT / "pyproject.toml"
    wanted = hashlib.sha256(project.read_bytes()).hexdigest()
    made = folder / "made-from.sha256"
    if not made.exists() or made.read_text() != wanted:
        _uv("venv", "--clear", "--python", sys.executable, folder)
        _uv("pip", "install", "--python", folder, "-r", project, "--extra", "dev", f"pyspark=={pyspark}")
        made.write_text(wanted)
    return folder / "bin" / "python"


def variables() -> dict[str, str]:
    """The environment variables of a process that runs there: this checkout, and none of our own Spark."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    return {**ours, "PYTHONPATH": str(ROOT)}


def _uv(*arguments: str | Path) -> None:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise Unavailable("other versions of PySpark are installed with uv, and there is none: pip install uv")
    done = subprocess.run([uv, "--quiet", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"the environment cannot be made: {done.stderr.strip()[-1000:]}")

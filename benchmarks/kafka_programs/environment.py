"""The other libraries, as installed from PyPI: an environment of their own in the cache folder, made on first use."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers import CACHE

REQUIREMENTS = (
    "aiokafka[lz4]==0.14.0",
    "bytewax[kafka]==0.21.1",
    "faust-streaming==0.15.3",
    "faststream[confluent]==0.7.8",
    "orjson>=3.10,<4",
    "pyarrow>=21,<27",
    "quixstreams==3.28.1",
)


def python_of_peers() -> Path:
    """The interpreter of that environment. Takes a minute the first time."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join((version, *REQUIREMENTS)).encode()).hexdigest()[:12]
    folder = CACHE / f"kafka-peers-{digest}"
    python = folder / "bin" / "python"
    if not python.exists():
        unfinished = folder.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        uv = [sys.executable, "-m", "uv"]
        subprocess.run(
            [*uv, "venv", "--quiet", "--python", sys.executable, "--relocatable", str(unfinished)], check=True
        )
        install = [
            *uv,
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(unfinished / "bin" / "python"),
        ]
        subprocess.run([*install, *REQUIREMENTS], check=True)
        unfinished.rename(folder)
    return python

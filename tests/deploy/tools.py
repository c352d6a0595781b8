"""The tools that read the files in deploy/: from the environment, from PATH, or from a package of Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest

from tests.servers import CACHE, REQUIRED

_DEBIAN = CACHE / "debian"


def lint(tool: str | Path, *arguments: str | Path) -> str:
    """The output of the tool. Fails if the tool refuses the file, and skips if it is not installed."""
    found = shutil.which(str(tool), path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def prometheus(tool: str = "prometheus") -> Path:
    """Prometheus, or its `promtool`: installed, or out of Debian's package, which is fetched once per machine."""
    if (found := shutil.which(tool)) is not None:
        return Path(found)
    if not (_DEBIAN / tool).exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            _cannot_be_had(f"{tool} is not installed: it comes with Prometheus")
        with TemporaryDirectory() as name:
            _fetch(Path(name))
    return _DEBIAN / tool


def _fetch(folder: Path) -> None:
    fetched = subprocess.run(
        ["apt-get", "download", "--quiet", "prometheus"], cwd=folder, capture_output=True, text=True, check=False
    )
    packages = list(folder.glob("*.deb"))
    if not packages:
        _cannot_be_had(f"Prometheus is not installed, and its package cannot be had: {fetched.stderr.strip()[-300:]}")
    subprocess.run(["dpkg", "--extract", packages[0], folder / "files"], check=True)
    _DEBIAN.mkdir(parents=True, exist_ok=True)
    for tool in ("prometheus", "promtool"):
        part = _DEBIAN / f"{tool}.{os.getpid()}"
        shutil.copy(folder / "files" / "usr" / "bin" / tool, part)
        part.replace(_DEBIAN / tool)  # whole or not at all: another run may be fetching, too


def _cannot_be_had(why: str) -> NoReturn:
    if REQUIRED:
        pytest.fail(why)
    pytest.skip(why)

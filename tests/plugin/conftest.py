"""Installs the package of a stranger, and runs actorproc beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugin.packages import look_again
from tests.quiet import silence  # noqa: F401

ACME = Path(__file__).parent / "acme"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the stranger's package is installed, as its wheel says."""
    folder = tmp_path_factory.mktemp("acme")
    shutil.copytree(ACME, folder / "source")  # a build leaves files there
    uv = Path(sys.executable).parent / "uv"
    command: list[object] = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    command += ["--python", sys.executable, "--target", folder / "site", folder / "source"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture
def acme(site: Path, tmp_path: Path) -> Run:
    """Runs the command `actorproc` in the folder of the test. `sites`: of more packages."""

    def run(*arguments: object, sites: tuple[Path, ...] = (), code: int | None = 0) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ACTORPROC_")}
        path = os.pathsep.join(map(str, (site, *sites)))
        done = subprocess.run(
            [sys.executable, "-m", "actorproc", *map(str, arguments)],
            cwd=tmp_path, env=clean | {"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stranger's package is installed in this process, too."""
    monkeypatch.syspath_prepend(str(site))
    look_again()
    yield
    look_again()

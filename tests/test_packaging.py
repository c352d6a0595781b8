"""The wheel holds two folders of the root as parts of `actorproc`, and only the module for Spark beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["stores", "handlers"])
def test_the_folders_at_the_root_are_linked_into_the_package(folder: str) -> None:
    link = ROOT / "actorproc" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert (link / "__init__.py").is_file()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the checkout."""
    copy, out = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "build", "--wheel", "--quiet", "--out-dir", out, copy], check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_module_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} - {"actorproc", "pyspark_actorproc.py"} == {
        next(name.split("/")[0] for name in names if ".dist-info/" in name)
    }
    modules = {
        str(path.relative_to(ROOT))
        for folder in ("actorproc", "stores", "handlers")
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }
    expected = {name if name.startswith("actorproc/") else f"actorproc/{name}" for name in modules}
    expected.add("pyspark_actorproc.py")
    assert {name for name in names if name.endswith(".py")} == expected
    assert {
        "actorproc/stores/s3.py",
        "actorproc/handlers/json_rows.py",
        "actorproc/py.typed",
        "actorproc/server/static/app.js",
    } <= names


# As Spark does before its first query, in a process of its own.
DISCOVERY = """
import io
from pyspark.sql.worker import lookup_data_sources as lookup
from pyspark.serializers import read_int

found = io.BytesIO()
lookup._main(io.BytesIO(), found)
found.seek(0)
count = read_int(found)
print(found.read(read_int(found)).decode() if count else "", lookup.import_module("pyspark_actorproc").__file__)
"""


def discovered(where: Path, path: str) -> list[str]:
    """The data source that Spark finds from folder `where`, and the file that it finds it in."""
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", DISCOVERY]
    return subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_spark_finds_the_data_source_after_make_install(tmp_path: Path) -> None:
    assert discovered(tmp_path, "") == ["actorproc", str(ROOT / "pyspark_actorproc.py")], "run: make install"


@pytest.mark.slow
def test_spark_finds_the_data_source_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert discovered(tmp_path, str(installed)) == ["actorproc", str(installed / "pyspark_actorproc.py")]

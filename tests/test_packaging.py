"""The wheel holds two folders of the root as parts of `actorproc`, and only the module for Spark beside it.

Built twice it is the same, and it works in an environment of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.releases.distributions import build

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["stores", "handlers"])
def test_the_folders_at_the_root_are_linked_into_the_package(folder: str) -> None:
    link = ROOT / "actorproc" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert (link / "__init__.py").is_file()


def test_every_entry_point_names_something_that_is_there() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for module, _, name in (point.partition(":") for group in groups.values() for point in group.values()):
        path = ROOT / module.replace(".", "/")
        code = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        assert re.search(rf"\b{name}\b", code), module


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel built from it."""
    return build(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def wheel(release: tuple[Path, Path]) -> Path:
    return release[1]


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


# A release


@pytest.mark.long
def test_a_release_that_is_built_twice_has_the_same_bytes(release: tuple[Path, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    assert [path.name for path in again] == [path.name for path in release]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in release]


@pytest.mark.long
def test_twine_accepts_the_release(release: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, release)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


APP = """
from actorproc import RecordHandler

class Twice(RecordHandler):
    output_schema = "n long"

    def process_record(self, record, ctx):
        return {"n": 2 * record.json()["n"]}
"""


@pytest.mark.long
def test_a_newcomer_serves_with_nothing_but_the_wheel_installed(wheel: Path, tmp_path: Path) -> None:
    uv, environment = Path(sys.executable).parent / "uv", tmp_path / "env"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "numbers.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))

    def actorproc(*arguments: str) -> str:
        command = [str(environment / "bin" / "actorproc"), *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ACTORPROC_", "PYTHON"))}
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
        return str(done.stdout)

    actorproc("produce", "--log", "events", "--partitions", "2", "--key", "n", "numbers.jsonl")
    actorproc("serve", "app:Twice", "--source", "events", "--container", "state", "--until-end")
    rows = actorproc("output", "--name", "Twice", "--container", "state", "--json").splitlines()
    assert sorted(json.loads(row)["n"] for row in rows) == list(range(0, 20, 2))


def test_the_constraints_of_make_install_are_within_the_ranges_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [Requirement(text) for some in (project["dependencies"], *extras) for text in some]
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert len(pinned) > 100
    wrong = [f"{r} but {pinned[r.name]}" for r in wanted if r.name in pinned and pinned[r.name] not in r.specifier]
    assert wrong == [], "run: make lock"

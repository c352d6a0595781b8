"""What is installed: two folders of the root under `actorproc`, and nothing beside it but the module that Spark looks for."""

from __future__ import annotations

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in the wheel, built from a copy of the checkout."""
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
    with zipfile.ZipFile(next(out.glob("*.whl"))) as archive:
        return set(archive.namelist())


@pytest.mark.slow
def test_the_wheel_holds_every_module_once_and_only_sparks_module_beside_the_package(wheel: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel} - {"actorproc", "pyspark_actorproc.py"} == {
        next(name.split("/")[0] for name in wheel if ".dist-info/" in name)
    }
    modules = {
        str(path.relative_to(ROOT))
        for folder in ("actorproc", "stores", "handlers")
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }
    expected = {name if name.startswith("actorproc/") else f"actorproc/{name}" for name in modules}
    expected.add("pyspark_actorproc.py")
    assert {name for name in wheel if name.endswith(".py")} == expected
    assert {"actorproc/stores/s3.py", "actorproc/handlers/json_rows.py", "actorproc/py.typed"} <= wheel

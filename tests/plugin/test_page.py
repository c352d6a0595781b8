"""docs/extend.md and `actorproc.spi`: the package on the page works, and the names are those of the page."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from actorproc import plugins, spi
from actorproc.config.settings import Settings
from actorproc.sources import open_source
from actorproc.testing import check_source
from tests.plugin.conftest import ACME
from tests.plugin.packages import installed_package, look_again

PAGE = (Path(__file__).parent.parent.parent / "docs" / "extend.md").read_text()


def block(language: str) -> str:
    found, *_ = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_names_of_the_spi_are_sorted_and_each_is_on_the_page() -> None:
    assert spi.__all__ == sorted(spi.__all__)
    assert all(hasattr(spi, name) for name in spi.__all__)
    table = PAGE.partition("## Names that you may use")[2]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == spi.__all__


def test_the_page_has_a_row_for_each_group() -> None:
    groups = {plugins.SOURCES, plugins.SINKS, plugins.STORES, plugins.DECODERS, plugins.ENCODERS, plugins.COMMANDS}
    assert set(re.findall(r"^\|[^|]*\| `(actorproc\.\w+)`", PAGE, re.MULTILINE)) == groups


def test_a_strangers_package_imports_the_spi_and_errors_alone() -> None:
    used: set[str] = set()
    for file in ACME.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "actorproc":
                used.add(node.module)
            elif isinstance(node, ast.Import):
                used.update(name.name for name in node.names if name.name.split(".")[0] == "actorproc")
    assert used == {"actorproc.spi", "actorproc.errors"}


async def test_the_package_on_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads(block("toml"))["project"]
    points = {group.removeprefix("actorproc."): named for group, named in project["entry-points"].items()}
    site = installed_package(tmp_path / "site", project["name"], points, actorproc_lines=block("python"))
    monkeypatch.syspath_prepend(str(site))
    look_again()
    try:
        (tmp_path / "file").write_bytes(b"one\ntwo\nand no e")
        settings = Settings.load(source_options={"poll": "0.01"})
        checked = await check_source(lambda: open_source(f"lines://{tmp_path}/file", settings=settings))
        assert checked.records == {"0": 2}
    finally:
        look_again()

"""`python -m tests.routes` counts the code, and the pages show the routes that it finds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.routes.record import RECORDS, Route, record_route
from tests.routes.rooms import PACKAGE, ROOT, rooms
from tests.routes.serve import serve_start

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def route() -> Route:
    return record_route()


def test_every_file_of_the_package_is_counted_once() -> None:
    linked = [path for name in ("stores", "handlers") for path in (ROOT / name).rglob("*.py")]
    files = [path for path in PACKAGE.rglob("*.py") if path.parent.resolve().is_relative_to(PACKAGE)] + linked
    found = rooms()
    assert sum(room.files for room in found) == len(files)
    assert sum(room.lines for room in found) == sum(len(path.read_text().splitlines()) for path in files)


def test_the_route_of_a_record_goes_from_the_source_to_the_store(route: Route) -> None:
    assert route.rows == RECORDS
    wanted = ["sources/log.py", "partition/read_ahead.py", "handlers/record_handler.py", "output/chain.py"]
    assert [name for name in wanted if f"actorproc/{name}" not in route.files] == [], route.files
    wanted = ["partition.actor.PartitionActor", "partition.read_ahead.ReadAhead", "stores.folder.FolderStore"]
    assert [name for name in wanted if f"actorproc.{name}" not in route.classes] == []
    rooms_outside = ("group/", "host/", "processor.py", "cli/", "admin/")
    assert [file for file in route.files if file.removeprefix("actorproc/").startswith(rooms_outside)] == []


def test_the_page_names_only_files_that_a_record_enters(route: Route) -> None:
    told = _files_of_steps("The route of a record")
    assert told
    assert [file for file in told if f"actorproc/{file}" not in route.files] == []


def test_the_script_prints_a_table_of_rooms() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tests.routes", "--rooms"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "partition/" in printed
    assert "connectors/kafka/" in printed


@pytest.mark.slow
def test_the_page_names_only_files_that_the_start_of_serve_enters() -> None:
    start = serve_start(runs=1)
    assert len(start.entered) < len(start.imported) < len(start.modules)
    assert 0 < start.bare_cpu < start.cpu < 30
    told = _files_of_steps("The route of `actorproc serve`")
    later = {"host/owned_partitions.py", "cli/workers.py"}
    assert told
    assert [file for file in told if f"actorproc/{file}" not in start.entered and file not in later] == []


def _files_of_steps(heading: str) -> list[str]:
    section = ARCHITECTURE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [
        file for step in re.findall(r"^\d+\. .*", section, re.MULTILINE) for file in re.findall(r"`([\w/]+\.py)`", step)
    ]

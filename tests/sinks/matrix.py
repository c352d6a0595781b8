"""The matrix sink x guarantee x how it was tried, in docs/sinks.md. `python -m tests.sinks.matrix` writes it.

A connector's test hands its `check_sink` over:

    checked = await check_sink(...)
    tried("postgresql", checked, on="PostgreSQL")                       # the real server
    tried("clickhouse", checked, on="its engine ...", double=True)      # a double

and fails if the page says something else. The command runs these tests, and writes their rows into the page.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from actorproc.testing import CheckedSink

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sinks.md"

BASIC = (
    "first deliveries", "a repeated delivery", "two owners at once", "a lost reply", "a delivery that is cut off",
    "a fence", "another registration", "one more column", "all types of output_schema",
)  # fmt: skip
"""What `check_sink` tries with every sink."""

_WRITE = "ACTORPROC_TESTS_MATRIX"
"""Path of the file to which rows are written, instead of a comparison with the page."""

_BEGIN, _END = "<!-- matrix: written by python -m tests.sinks.matrix -->\n", "<!-- matrix: end -->\n"


def tried(sink: str, checked: CheckedSink, *, on: str, double: bool = False) -> None:
    """`check_sink` has found no violation.

    Args:
        sink: the scheme, and the mode if there are several; without order, for example "redis, upsert".
        on: what it was tried on.
        double: this was no server of the maker.
    """
    row = _row(sink, checked, on, double)
    if (path := os.environ.get(_WRITE)) is not None:
        with Path(path).open("a") as file:
            file.write(f"{row}\n")
        return
    assert row in PAGE.read_text().splitlines(), f"run: python -m tests.sinks.matrix\n{row}"


def _row(sink: str, checked: CheckedSink, on: str, double: bool) -> str:
    more = [check for check in checked.checks if check not in BASIC]
    without = [f"without: {check}" for check in BASIC if check not in checked.checks]
    where = ["", on] if double else [on, ""]
    return f"| {' | '.join([f'`{sink}`', str(checked.guarantee), *where, '; '.join([*more, *without])])} |"


def write() -> None:
    """Run the tests that use `tried`, and write the page.

    Raises:
        SystemExit: a test has failed, or was skipped.
    """
    tests = [test for path in (ROOT / "tests" / "connectors").rglob("test_*.py") for test in _tests(path)]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", *tests]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {_WRITE: str(rows)}, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        _replace(sorted({*rows.read_text().splitlines()}))


def _tests(path: Path) -> list[str]:
    """The tests of a file that call `tried`."""
    found = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [f"{path}::{node.name}" for node in found if "tried(" in ast.unparse(node)]


def _replace(rows: list[str]) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    table = [
        "| sink | guarantee kept | on the real server | by a double | tried beyond the basic checks |",
        "|---|---|---|---|---|", *rows,
    ]  # fmt: skip
    PAGE.write_text(before + _BEGIN + "\n".join(table) + "\n" + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    write()

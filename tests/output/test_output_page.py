"""docs/output.md: its snippets read the output as the page says, of a processor to which a column was added."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from actorproc import JsonRows, Processor, Settings
from actorproc.testing import MemorySource

PAGE = (Path(__file__).parents[2] / "docs" / "output.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TOTALS = [("DE", Decimal("5.50")), (None, Decimal("3.00"))]


class Orders(JsonRows):
    output_schema = "id bigint, price decimal(10,2)"


class Later(JsonRows):
    output_schema = "id bigint, price decimal(10,2), country string"


@pytest.fixture
async def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Variables of the pyarrow snippet; two partitions, each with files from before and after a column was added."""
    monkeypatch.chdir(tmp_path)
    source = MemorySource(2)
    for handler, more in ((Orders, b""), (Later, b', "country": "DE"')):
        for partition, number in (("0", 1), ("1", 2)):
            source.append(partition, [b'{"id": %d, "price": "%d.%d0"%s}' % (number, number, 5 if more else 0, more)])
            if partition == "1" and more:
                source.append("1", [b'{"id": 3, "price": "1.50", "country": "DE"}'])
        container = str(tmp_path / "state")
        await Processor(handler, name="Orders", source=source, container=container, settings=Settings()).run(
            until_end=True
        )
    return executed("pyarrow.dataset", {})


def executed(of: str, names: dict[str, Any]) -> dict[str, Any]:
    (block,) = [block for block in BLOCKS if f"import {of} " in block.replace("\n", " ")]
    exec(compile(block, "docs/output.md", "exec"), names)
    return names


def test_pyarrow_reads_added_columns_and_the_partition(
    names: dict[str, Any],
) -> None:
    assert sorted(names["table"].to_pylist(), key=lambda row: (row["id"], row["_sequence"])) == [
        {"partition": "1", "_sequence": 0, "id": 2, "country": None},
        {"partition": "1", "_sequence": 1, "id": 2, "country": "DE"},
        {"partition": "1", "_sequence": 2, "id": 3, "country": "DE"},
    ]


def test_pandas_reads_the_output_typed(names: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    frame = executed("pandas", names)["frame"]
    assert len(frame) == 5
    assert frame.groupby("country")["price"].sum().to_dict() == dict(TOTALS[:1])
    assert set(frame["partition"]) == {"0", "1"}


def test_polars_reads_the_output_lazily(names: dict[str, Any]) -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    assert set(executed("polars", names)["by_country"].rows()) == set(TOTALS)


def test_duckdb_reads_the_output_by_itself(names: dict[str, Any]) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    assert executed("duckdb", names)["totals"] == TOTALS


def test_every_snippet_of_the_page_is_run() -> None:
    assert len(BLOCKS) == 4

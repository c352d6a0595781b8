"""The source on the page about sources is complete and correct."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from actorproc.testing import check_source

PAGE = Path(__file__).parent.parent.parent / "docs" / "sources.md"


async def test_the_source_on_the_page_passes_check_source(tmp_path: Path) -> None:
    code = re.search(r"```python\n(import anyio\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    assert len(code[1].splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(code[1].replace("anyio.sleep(1)", "anyio.sleep(0.01)"), names)
    file = tmp_path / "events.txt"
    file.write_text("a\nb\nunfinished")

    async def add() -> None:
        with file.open("a") as events:
            events.write(" no more\n")

    report = await check_source(lambda: names["FileLines"](file), add=add)
    assert report.records == {"0": 3}

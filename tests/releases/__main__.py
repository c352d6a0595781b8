"""`python -m tests.releases`: write the archive of this version."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from tests.releases import archive, write

with TemporaryDirectory() as folder:
    anyio.run(write, Path(folder))
    made = archive(Path(folder))
print(f"{made}: {made.stat().st_size:,} bytes")

"""Keeps the output files that a trim deletes, so that every row of a run can be compared at its end."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tests.chaos.objects import Objects, read_folder


class Archive:
    """Hard links to the files of a processor's chains. A file links as it is first seen: no late write changes it.

    Args:
        container: folder of a folder store.
        folder: of the links, in the same file system.
    """

    def __init__(self, container: Path, processor: str, folder: Path) -> None:
        self._container, self._output, self._folder = container, Path(processor, "output"), folder
        self._known: dict[Path, str] = {}  # folder of a partition -> last name that was linked

    def keep(self) -> None:
        """Link the files that are new. Call it more often than files get old enough for a trim."""
        for source in (self._container / self._output).glob("partition=*"):
            target = self._folder / self._output / source.name
            target.mkdir(parents=True, exist_ok=True)
            known = self._known.get(source, "")
            new = sorted(name for name in os.listdir(source) if name > known and name.endswith(".parquet"))
            for name in new:
                with suppress(FileExistsError):
                    (target / name).hardlink_to(source / name)
            self._known[source] = new[-1] if new else known

    def has_deleted(self) -> bool:
        """Whether the container lacks one of them: the last link is ours."""
        return any(path.stat().st_nlink == 1 for path in self._folder.rglob("*.parquet"))

    def objects(self) -> Objects:
        """All that were linked, by their keys in the container."""
        return read_folder(self._folder) if self._folder.exists() else {}

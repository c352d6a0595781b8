"""Lines and files of the package, by room and by group of rooms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "actorproc"

GROUPS = {
    "core": (
        "counts", "errors", "records", "runtime", "config", "rows", "storage", "group", "retention", "handler", "state",
        "output", "log", "sources", "sinks", "codecs", "partition", "host", "processor", "plugins", "testing", "spi",
    ),
    "for people": ("__init__", "__main__", "cli", "server", "admin", "demo"),
    "wings": ("connectors", "formats", "spark", "simulation", "produce"),
    "stores and handlers": ("stores", "handlers"),
}  # fmt: skip


@dataclass(frozen=True)
class Room:
    """A room, or one of the folders in a wing."""

    group: str
    name: str
    files: int
    lines: int


def rooms() -> list[Room]:
    """All rooms, group by group. Connectors and formats are listed one by one.

    Raises:
        ValueError: a room is in none of the groups.
    """
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or list(path.glob("*.py"))}
    if missing := there - {name for names in GROUPS.values() for name in names}:
        raise ValueError(f"add to GROUPS in {__file__}: {', '.join(sorted(missing))}")
    return [room for group, names in GROUPS.items() for name in names for room in _rooms_of(group, name)]


def _rooms_of(group: str, name: str) -> Iterator[Room]:
    folder = PACKAGE / name
    if not folder.is_dir():
        yield _counted(group, name, [folder.with_suffix(".py")])
        return
    inner = sorted(path for path in folder.iterdir() if (path / "__init__.py").exists())
    yield _counted(group, f"{name}/", list(folder.glob("*.py")))
    for path in inner:
        yield _counted(group, f"{name}/{path.name}/", list(path.rglob("*.py")))


def _counted(group: str, name: str, files: list[Path]) -> Room:
    return Room(group, name, len(files), sum(len(path.read_text().splitlines()) for path in files))

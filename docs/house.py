"""Draws `house.svg`: the floors of the import contract in pyproject.toml, with the rooms on each.

Run `python docs/house.py` after a room was added.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
FLOORS = (
    ("entry", "#dbeafe"), ("for people", "#e0e7ff"), ("put together", "#ede9fe"), ("at work", "#fae8ff"),
    ("data", "#fce7f3"), ("contracts", "#ffedd5"), ("objects", "#fef3c7"), ("ground", "#dcfce7"), ("words", "#f1f5f9"),
)  # fmt: skip
"""Name and colour, from the top."""

ROOMS = {
    "__main__": "entry point",
    "cli": "arguments in, text out",
    "server": "HTTP, dashboard",
    "demo": "make demo",
    "testing": "test kit, simulation",
    "processor": "what applications embed",
    "host": "supervisor, one per host",
    "spark": "DataFrames, queries, sink",
    "partition": "actor, one per lease",
    "sources": "what a handler reads",
    "admin": "status, trim, replay, readers",
    "log": "built-in log",
    "output": "commit chain",
    "state": "keyed state",
    "handlers": "RecordHandler...",
    "codecs": "Avro, JSON, CSV...",
    "handler": "PartitionHandler, context",
    "group": "members, leases, plan",
    "stores": "memory, folder, S3",
    "retention": "readers, boundaries",
    "storage": "store contract, settled writes, documents, names, Parquet, probe",
    "runtime": "actor, clock, threads",
    "config": "settings",
    "rows": "schema, encoding",
    "errors": "one tree",
    "records": "Record, Batch",
}
"""What each is for."""

LEFT, WIDTH, HEIGHT, STEP, GAP = 150, 710, 44, 52, 10
MONO = "ui-monospace, Menlo, Consolas, monospace"


def layers() -> list[list[str]]:
    """The rooms of each floor, from the top."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    [contract] = [one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    return [sorted(layer.replace(" ", "").split(":"), key=list(ROOMS).index) for layer in contract["layers"]]


def drawn() -> str:
    """The picture, as SVG."""
    floors = layers()
    height = 20 + STEP * len(floors) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" width="880" height="{height}" role="img" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">",
        "<title>The nine floors of actorproc; imports run down</title>",
        f'<rect x="0.5" y="0.5" width="879" height="{height - 1}" rx="10" fill="#ffffff" stroke="#e5e7eb"/>',
    ]
    for index, (rooms, (name, colour)) in enumerate(zip(floors, FLOORS, strict=True)):
        lines += _floor(len(floors) - index, name, colour, rooms, 20 + STEP * index)
    lines += [
        f'<path d="M138 26 V{height - 32}" stroke="#64748b" stroke-width="1.5" marker-end="url(#a)"/>',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z" fill="#64748b"/></marker></defs></svg>',
    ]
    return "\n".join(lines) + "\n"


def _floor(number: int, name: str, colour: str, rooms: list[str], top: int) -> list[str]:
    width = (WIDTH - GAP * (len(rooms) - 1)) / len(rooms)
    lines = [_text(24, top + 27, str(number), "#64748b", size=13), _text(44, top + 27, name, "#1f2937", size=13)]
    for index, room in enumerate(rooms):
        left = LEFT + (width + GAP) * index
        label = f"{room}/" if (HERE.parent / "actorproc" / room).is_dir() else room
        box = f'x="{left:g}" y="{top}" width="{width:g}" height="{HEIGHT}" rx="6"'
        middle, bold = left + width / 2, f' font-weight="bold" font-family="{MONO}"'
        lines.append(f'<rect {box} fill="{colour}" stroke="#94a3b8"/>')
        lines.append(_text(middle, top + 19, label, "#1f2937", size=13, more=bold))
        lines.append(_text(middle, top + 35, ROOMS[room], "#475569", size=11, more=""))
    return lines


def _text(left: float, top: int, text: str, colour: str, *, size: int, more: str | None = None) -> str:
    middle = "" if more is None else f' text-anchor="middle"{more}'
    return f'<text x="{left:g}" y="{top}" font-size="{size}"{middle} fill="{colour}">{text}</text>'


if __name__ == "__main__":
    (HERE / "house.svg").write_text(drawn())

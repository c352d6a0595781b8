"""Draws `house.svg`: the house on one screen, in twelve boxes. The import contract in pyproject.toml is checked.

Run `python docs/house.py` after a room was added.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Box(NamedTuple):
    """A box of the picture.

    Attributes:
        rooms: from the top floor to the bottom floor.
    """

    name: str
    purpose: str
    rooms: tuple[str, ...]


ABOVE: tuple[tuple[str, tuple[Box, ...]], ...] = (
    ("#dbeafe", (
        Box("for people", "command line, HTTP server with the dashboard, demo", ("__main__", "cli", "demo", "server")),
    )),
    ("#ede9fe", (
        Box("connectors", "Kafka, Kinesis, Cosmos...", ("connectors",)),
        Box("formats", "Avro, Protobuf, registry", ("formats",)),
        Box("spark", "DataFrames, queries, sink", ("spark",)),
        Box("simulation", "a cluster in virtual time", ("simulation",)),
    )),
    ("#fae8ff", (
        Box("admin, produce", "the acts of operators: status, trim, reset, replay; appends to the built-in log",
            ("admin", "produce")),
    )),
)  # fmt: skip
"""The floors above the core: colour and boxes."""

CORE: tuple[tuple[str, Box], ...] = (
    ("#fce7f3", Box("test kit", "for handlers and sources", ("testing",))),
    ("#fce7f3", Box("at work", "one Processor and supervisor per host, one actor per lease",
                    ("processor", "host", "partition"))),
    ("#ffedd5", Box("data", "streams in, rows out, and on to sinks; keyed state; decoders; ready-made handlers",
                    ("spi", "sinks", "sources", "state", "handlers", "log", "output", "codecs"))),
    ("#fef3c7", Box("contracts", "base classes for users; members and leases; data that must be kept",
                    ("handler", "group", "retention"))),
    ("#dcfce7", Box("objects", "memory, folder, S3; settled writes, documents, names, Parquet", ("stores", "storage"))),
    ("#f1f5f9", Box("ground", "settings, row schemas, entry points; actors, clock, threads; errors, records",
                    ("config", "rows", "plugins", "runtime", "counts", "errors", "records"))),
)  # fmt: skip
"""The floors of the core: colour and box."""

LEFT, WIDTH, HEIGHT, STEP, GAP = 44, 812, 46, 56, 10
FRAME = 34  # height of the core's heading
MONO = "ui-monospace, Menlo, Consolas, monospace"


def check() -> None:
    """Compare the boxes with the contract.

    Raises:
        ValueError: a room is missing or unknown, or stands above one that may import it.
    """
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    contract = next(one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    layer = {room: depth for depth, rooms in enumerate(contract["layers"]) for room in re.split(" [|:] ", rooms)}
    floors = [[room for box in boxes for room in box.rooms] for _, boxes in ABOVE] + [
        list(box.rooms) for _, box in CORE
    ]
    drawn = [room for floor in floors for room in floor]
    if sorted(drawn) != sorted(layer):
        raise ValueError(f"rooms of either the picture or the contract only: {set(drawn) ^ set(layer)}")
    depths = [layer[room] for room in drawn]
    if wrong := [drawn[i] for i in range(1, len(drawn)) if depths[i] < depths[i - 1]]:
        raise ValueError(f"these stand below a room that they may import: {wrong}")


def drawn() -> str:
    """The picture, as SVG."""
    check()
    core = 20 + STEP * len(ABOVE)
    height = core + FRAME + STEP * len(CORE) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" width="880" height="{height}" role="img" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">",
        "<title>The house of actorproc: for people, wings, and the core; imports run down</title>",
        f'<rect x="0.5" y="0.5" width="879" height="{height - 1}" rx="10" fill="#ffffff" stroke="#e5e7eb"/>',
        f'<rect x="{LEFT - 10}" y="{core}" width="{WIDTH + 20}" height="{height - core - 14}" rx="8" fill="none" '
        'stroke="#64748b" stroke-dasharray="5 4"/>',
        _text(LEFT, core + 22, "core", "#1f2937", size=14, more=' font-weight="bold"'),
        _text(LEFT + 44, core + 22, "imports nothing of the above", "#475569", size=12),
    ]
    for index, (colour, boxes) in enumerate(ABOVE):
        width = (WIDTH - GAP * (len(boxes) - 1)) / len(boxes)
        for place, box in enumerate(boxes):
            lines += _box(LEFT + (width + GAP) * place, 20 + STEP * index, width, colour, box)
    for index, (colour, box) in enumerate(CORE):
        lines += _box(LEFT, core + FRAME + STEP * index, WIDTH, colour, box)
    lines += [
        f'<path d="M20 26 V{height - 30}" stroke="#64748b" stroke-width="1.5" marker-end="url(#a)"/>',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z" fill="#64748b"/></marker></defs></svg>',
    ]
    return "\n".join(lines) + "\n"


def _box(left: float, top: int, width: float, colour: str, box: Box) -> list[str]:
    """Narrow boxes have one room, which is their name. Wide ones name their rooms on the right."""
    lines = [
        f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{HEIGHT}" rx="6" fill="{colour}" stroke="#94a3b8"/>',
        _text(left + 12, top + 20, _label(box.name), "#1f2937", size=13, more=' font-weight="bold"'),
        _text(left + 12, top + 37, box.purpose, "#475569", size=11),
    ]
    if box.rooms != (box.name,):
        rooms = " ".join(_label(room) for room in box.rooms if not room.startswith("_"))
        more = f' text-anchor="end" font-family="{MONO}"'
        lines.append(_text(left + width - 12, top + 20, rooms, "#1f2937", size=12, more=more))
    return lines


def _label(room: str) -> str:
    return f"{room}/" if (HERE.parent / "actorproc" / room).is_dir() else room


def _text(left: float, top: int, text: str, colour: str, *, size: int, more: str = "") -> str:
    return f'<text x="{left:g}" y="{top}" font-size="{size}"{more} fill="{colour}">{text}</text>'


if __name__ == "__main__":
    (HERE / "house.svg").write_text(drawn())

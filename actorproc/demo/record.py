"""Records the demo's picture as an animated SVG, which a README can show."""

from __future__ import annotations

import io
import re
from collections import deque
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

WIDTH, HEIGHT = 104, 27  # characters
STORY = 9  # lines of the story in a frame
SECONDS = 2.5  # for which a frame is shown; the last one three times as long

_FRAME = """\
<g class="{unique_id}-matrix frame" style="animation-delay:{delay}s;animation-duration:{total}s">
<style>{styles}
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
</style>
{backgrounds}{matrix}</g>
"""
_PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.frame {{ visibility: hidden; animation-name: show; animation-iteration-count: infinite;
  animation-timing-function: step-end; }}
@keyframes show {{ 0% {{ visibility: visible; }} {share:.3f}% {{ visibility: hidden; }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#1b1d23"/>
<g transform="translate(12 12)">
{frames}</g>
</svg>
"""


class Recorder:
    """Collects frames: the last lines of the story above a picture."""

    def __init__(self) -> None:
        self._story: deque[Text] = deque(maxlen=STORY)
        self._frames: list[RenderableType] = []

    def say(self, line: Text, picture: RenderableType) -> None:
        """Add a line to the story, and a frame with it."""
        self._story.append(line)
        self.look(picture)

    def look(self, picture: RenderableType) -> None:
        """Add a frame with the present story."""
        self._frames.append(Group(*self._story, picture))

    def show(self, picture: RenderableType) -> None:
        """Add a frame without the story."""
        self._frames.append(picture)

    def save(self, file: Path) -> None:
        """Write all frames, one after the other; the last one is shown longest."""
        frames = [*self._frames, self._frames[-1], self._frames[-1]]
        total = SECONDS * len(frames)
        drawn = [_drawn(frame, f"f{index}") for index, frame in enumerate(frames)]
        placed = [
            svg.replace("DELAY", f"{index * SECONDS:g}").replace("TOTAL", f"{total:g}")
            for index, svg in enumerate(drawn)
        ]
        width, height = WIDTH * 12.2 + 24, HEIGHT * 24.4 + 24
        share = 100 / len(frames)
        picture = _PICTURE.format(width=round(width), height=round(height), share=share, frames="".join(placed))
        file.write_text(re.sub(r"[ \t]+\n", "\n", picture))


def _drawn(frame: RenderableType, name: str) -> str:
    """The frame as an SVG group, with its names made unique."""
    console = Console(
        record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(frame)
    code = _FRAME.replace("{delay}", "DELAY").replace("{total}", "TOTAL")
    svg = console.export_svg(code_format=code, unique_id=name)
    return re.sub(r' clip-path="[^"]*"|<text [^>]*>(?:\s|&#160;)*</text>', "", svg)  # lines are never wider

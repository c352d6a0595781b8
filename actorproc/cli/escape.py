"""Escapes control characters, so that text from data cannot move the terminal's cursor or change its title."""

from __future__ import annotations

import re

# All control characters but tabs and line ends, characters that change the text direction, and the invisible byte order
# mark.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]|\r(?!\n)")


def escaped(text: str) -> str:
    r"""`text` with each control character as an escape sequence, such as \x1b."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)

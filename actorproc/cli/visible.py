"""Text of others as a terminal may show it: what a record or an error holds must not move its cursor or change its title."""

from __future__ import annotations

import re

# Control characters but for tabs and line ends, those that turn the direction of what follows, and the byte order mark, which
# nobody sees.
_ACTING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]|\r(?!\n)")


def visible(text: str) -> str:
    r"""`text` with each character that would act on a terminal, or hide in it, as its escape, such as \x1b."""
    return _ACTING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)

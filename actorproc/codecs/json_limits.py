"""The depth that JSON values may have, whichever parser reads them, and signs of numbers that are not JSON."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.codecs.limits import MOST_LEVELS
from actorproc.errors import DecodeError

_SHORTEST = 2 * MOST_LEVELS + 2  # bytes of a deeper value
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_BRACE = ord("{")  # and "[", with the bit of lower case
_CLOSING = ord("}")
_LOOSE = {word: re.compile(word + rb"(?=[,\]}\s])") for word in (b"-NaN", b"Inf")}

_BLOCK = 64 * 2**10  # bytes


def check_depth(value: bytes) -> None:
    """Raises DecodeError: the value has more levels than `MOST_LEVELS`."""
    if _is_deep(value):
        raise too_deep()


def too_deep() -> DecodeError:
    return DecodeError(f"the value is nested more than {MOST_LEVELS} deep")


def deep_values(values: pa.Array) -> list[int]:
    """Indexes of the values of a binary column that have more levels than `MOST_LEVELS`."""
    if not len(values):
        return []
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if np.diff(bounds).max() < _SHORTEST:
        return []
    opening = np.append((np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]] | 0x20) == _BRACE, False)
    counts = np.add.reduceat(opening, bounds[:-1] - bounds[0], dtype=np.int32)
    return [index for index in np.flatnonzero(counts > MOST_LEVELS).tolist() if _is_deep(values[index].as_py() or b"")]


def _is_deep(value: bytes) -> bool:
    if len(value) < _SHORTEST or value.count(b"[") + value.count(b"{") <= MOST_LEVELS:
        return False
    structure = np.frombuffer(_STRINGS.sub(b"", value), np.uint8)
    return bool(np.cumsum(_STEPS.take(structure)).max(initial=0) > MOST_LEVELS)


def object_levels(value: bytes) -> tuple[int, int]:
    """How many objects a JSON value has, and how deep these are nested."""
    structure = np.frombuffer(_STRINGS.sub(b"", value), np.uint8)
    opening = structure == _BRACE
    levels = np.cumsum(opening.astype(np.int32) - (structure == _CLOSING))
    return int(opening.sum()), int(levels.max(initial=0))


def has_loose_numbers(text: bytes | pa.Buffer) -> bool:
    """Whether a text has a number that Arrow's parser takes, and Python's `json` does not: -NaN, Inf, -Inf."""
    content = np.frombuffer(text, np.uint8)
    return any(_has(content, word[:2]) and _is_loose(loose, bytes(text)) for word, loose in _LOOSE.items())


def _has(content: npt.NDArray[np.uint8], pair: bytes) -> bool:
    """Whether the text has these two bytes in a row. Python's own search takes four times as long.

    In blocks, because fresh memory for a truth per byte would take longer than the comparison.
    """
    first, second = pair
    for at in range(0, len(content), _BLOCK):
        block = content[at : at + _BLOCK + 1]
        starts = block[:-1] == first
        if starts.any() and np.any(starts & (block[1:] == second)):
            return True
    return False


def _is_loose(loose: re.Pattern[bytes], text: bytes) -> bool:
    return bool(loose.search(text) and loose.search(_STRINGS.sub(b"", text)))

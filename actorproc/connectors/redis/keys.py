"""Keys of one script call are in one slot of a cluster: `{...}` in a key names its slot."""

from __future__ import annotations

from collections.abc import Sequence

from actorproc.errors import UsageError


def tag_of(key: str) -> str:
    """What decides about the slot of this key: the part between the first braces, else all of it.

    Raises:
        UsageError: no other key can be in the same slot.
    """
    _, brace, rest = key.partition("{")
    inside, end, _ = rest.partition("}")
    if brace and end and inside:
        return inside
    if "}" in key:
        raise UsageError(f"{key!r}: braces in a Redis key name its slot in a cluster; write them as {{tag}}")
    return key


def has_tag(key: str) -> bool:
    """Whether all keys that begin with this one are in one slot."""
    return tag_of(key) != key


def key_of(values: Sequence[str | bytes]) -> bytes:
    """What follows the prefix: the value, or several with `:` between them, which values have as `%3A`."""
    found = [value.encode() if isinstance(value, str) else value for value in values]
    if len(found) > 1:
        found = [value.replace(b"%", b"%25").replace(b":", b"%3A") for value in found]
    return b":".join(found)


def position_key(key: str, sink: str, partition: str) -> str:
    """Key of the sink's row of a partition, in the slot of the stream `key`.

    Args:
        sink: processor and name of the sink.
    """
    return f"actorproc:{{{tag_of(key)}}}:{sink}:{partition}"

"""Messages about missing packages, for optional parts of actorproc."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The end of a message about a missing package of `extra`."""
    return (
        f"install the extra {extra!r}: pip install '.[{extra}]' in the checkout, or as actorproc itself was installed"
    )

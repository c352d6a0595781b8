"""Parts of the package that are installed only where they are wanted: how, said where one is missing."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The end of a message about something that `extra` brings."""
    return (
        f"install the extra {extra!r}: pip install '.[{extra}]' in the checkout, or as actorproc itself was installed"
    )

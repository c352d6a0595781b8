"""Keeps aiohttp from sending a request twice."""

from __future__ import annotations

from typing import TypeVar

from actorproc.errors import StoreRefused

T = TypeVar("T")


def sending_once(session: T) -> T:
    """The aiohttp session, changed: a PUT whose kept-alive connection breaks is not sent again.

    aiohttp would send it again below its callers, and return the refusal that the first attempt has caused.

    Raises:
        StoreRefused: this version of aiohttp cannot be kept from it.
    """
    if not hasattr(session, "_retry_connection"):
        import aiohttp

        raise StoreRefused(f"aiohttp {aiohttp.__version__} cannot be kept from sending a write twice; use 3.14")
    session._retry_connection = False
    return session

"""Signs requests with the key of a storage account.

https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

_SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


def decoded_key(key: str) -> bytes:
    """Raises ValueError: it is no account key. Does not show it."""
    try:
        found = base64.b64decode(key, validate=True)
    except binascii.Error:
        raise ValueError("is no account key: that is text in Base64, and no connection string") from None
    if not found:
        raise ValueError("is empty")
    return found


def signature(key: bytes, account: str, method: str, url: str, headers: Mapping[str, str]) -> str:
    """The value of the header Authorization.

    Args:
        url: encoded, as it is sent.
        headers: all others that the protocol signs, Content-Length among them.
    """
    given = {name.lower(): value for name, value in headers.items()}
    if given.get("content-length") == "0":
        given["content-length"] = ""
    lines = [method, *(given.get(name, "") for name in _SIGNED)]
    lines += [f"{name}:{given[name]}" for name in sorted(given) if name.startswith("x-ms-")]
    parts = urlsplit(url)
    lines.append(f"/{account}{parts.path}")
    query = sorted((name.lower(), value) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    lines += [f"{name}:{value}" for name, value in query]
    digest = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
    return f"SharedKey {account}:{base64.b64encode(digest).decode()}"

"""The URL of a service, as users give it in an option."""

from __future__ import annotations

from urllib.parse import urlsplit

from actorproc.config.validation import has_credentials


def checked_endpoint(url: str | None) -> str | None:
    """The URL without a '/' at its end. Raises ValueError: it is no URL of a service, or has credentials."""
    if url is None:
        return None
    if has_credentials(url):
        raise ValueError("must not contain credentials: there are options for them")
    parts = urlsplit(url)
    parts.port  # noqa: B018 (raises ValueError)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("must be a whole URL, such as http://localhost:10000")
    return url.rstrip("/")

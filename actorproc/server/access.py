"""Rights over HTTP: tokens, and the names under which a server without a token answers."""

from __future__ import annotations

import ipaddress
import re
from hmac import compare_digest
from typing import Literal

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from actorproc.config.options import with_secret
from actorproc.config.settings import Settings
from actorproc.errors import SettingsError, UsageError

_OPEN = ("/livez", "/readyz", "/static/")
"""Answered without a token, since probes have none: these say nothing about data. So is the page itself."""

_READS = ("GET", "HEAD")

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
"""HOST or HOST:PORT: a name or an IPv4 address, or an IPv6 address in brackets, and nothing else."""


class Tokens:
    """The tokens of one server.

    Raises:
        SettingsError: the file of a token cannot be read, or is too short.
    """

    def __init__(self, settings: Settings) -> None:
        self.write = _token("http_token", settings.http_token)
        self.read = _token("http_read_token", settings.http_read_token)

    @property
    def are_set(self) -> bool:
        return self.write is not None or self.read is not None

    def rights(self, headers: Headers) -> Literal["write", "read"] | None:
        """The rights of the bearer of these headers. A right to write includes the right to read."""
        scheme, _, given = headers.get("authorization", "").partition(" ")

        def is_given(token: str | None) -> bool:
            return token is not None and compare_digest(given.strip().encode(), token.encode())

        if scheme.lower() != "bearer":
            return None
        return "write" if is_given(self.write) else "read" if is_given(self.read) else None


def _token(name: str, given: str | None) -> str | None:
    token: str | None = with_secret(name, given)
    if token is not None and len(token) < 16:
        raise SettingsError(f"{name}: the token has less than 16 characters")
    return token


def parse_address(address: str, offset: int = 0) -> tuple[str, int]:
    """Host and port of `127.0.0.1:8600`, `[::1]:8600`, `:8600` (all addresses) or `8600` (loopback).

    Args:
        offset: added to the port.

    Raises:
        UsageError: it is none of these.
    """
    spelled = f"0.0.0.0{address}" if address.startswith(":") else address  # noqa: S104  # asks for a token
    spelled = f"127.0.0.1:{address}" if address.isdecimal() else spelled
    found = _HOST.fullmatch(spelled)
    if found is None or found[3] is None or int(found[3]) > 65535 - offset:
        raise UsageError(f"--http {address!r}: write HOST:PORT, such as 127.0.0.1:8600 or [::1]:8600, or a port alone")
    return found[1] or found[2], int(found[3]) + offset


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(headers: Headers) -> bool:
    """Whether a request was sent to a loopback name of this server: its one `Host` is exactly that, or with a port.

    A browser sends the name in the address of the page, and another site may let its own name stand for 127.0.0.1.
    """
    found = [_HOST.fullmatch(host) for host in headers.getlist("host")]
    if len(found) != 1 or found[0] is None:
        return False
    literal, name = found[0][1], found[0][2]
    return is_loopback(name.lower()) if literal is None else ":" in literal and is_loopback(literal)


def check_exposure(host: str, tokens: Tokens) -> None:
    """Raises UsageError: other machines could read everything without a token."""
    if not is_loopback(host) and not tokens.are_set:
        raise UsageError(
            f"--http {host}: other machines can reach this address, so a token is needed: set ACTORPROC_HTTP_TOKEN "
            "(all rights) or ACTORPROC_HTTP_READ_TOKEN in the environment, or listen on 127.0.0.1"
        )


class Guard:
    """ASGI middleware that asks for a token.

    Without tokens everybody who reaches the server may read. Then only loopback names are answered, so that a web page
    cannot read from a visitor's machine under a name of its own. Writing always needs the write token.

    Args:
        own_server: False for an app that is mounted in another one, whose names are not known.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, *, own_server: bool) -> None:
        self._app = app
        self._tokens = tokens
        self._own_server = own_server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers, tokens, write = Headers(scope=scope), self._tokens, scope["method"] not in _READS
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if write and tokens.write is None:
            return _answer(403, "this server has no write token: set ACTORPROC_HTTP_TOKEN where it starts")
        if write or tokens.are_set:
            is_open, rights = not write and (path == "/" or path.startswith(_OPEN)), tokens.rights(headers)
            if rights is None and not is_open:
                return _answer(401, "a token is needed")
            if write and rights == "read":
                return _answer(403, "this token may only read", needs="http_token")
            return None
        if self._own_server and not names_loopback(headers):
            asked = ", ".join(headers.getlist("host"))
            return _answer(403, f"without a token only loopback names are answered, not {asked!r:.200}")
        return None


def _answer(status: int, error: str, **more: str) -> JSONResponse:
    return JSONResponse({"error": error, **more}, status, {"WWW-Authenticate": "Bearer"} if status == 401 else None)

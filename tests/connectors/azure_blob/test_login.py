"""The login by Microsoft Entra, with Azure's own library, as a managed identity."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from actorproc.config.settings import Settings
from actorproc.connectors.azure_blob.shared_key import decoded_key, signature
from actorproc.errors import CredentialsExpired, StoreRefused, UsageError
from actorproc.stores import open_store
from tests.connectors.shared.azure_storage import ACCOUNT, KEY, BlobServer
from tests.servers import free_ports
from tests.stores.proxy import Proxy, Request, proxied, reply

pytestmark = pytest.mark.servers

_OTHERS = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "MSI_ENDPOINT")


class Entra(NamedTuple):
    """Who gives out tokens, and the tokens."""

    tokens: list[str]
    asked: list[str]


@pytest.fixture
async def entra(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Entra]:
    found = Entra([], [])

    async def token(request: web.Request) -> web.Response:
        assert request.headers["X-IDENTITY-HEADER"] == "known"
        found.asked.append(request.query["resource"])
        found.tokens.append(f"token-{len(found.asked)}")
        until = str(int(time.time()) + 86400)
        return web.json_response(
            {"access_token": found.tokens[-1], "expires_on": until, "resource": found.asked[-1], "token_type": "Bearer"}
        )

    async with _served(token) as endpoint:
        for name in _OTHERS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{endpoint}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "known")
        yield found


@asynccontextmanager
async def _served(handler: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/token", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def checking(proxy: Proxy, entra: Entra) -> None:
    """Let the proxy ask for a good token, and sign by key for Azurite, which takes tokens over TLS only."""

    async def check(request: Request) -> bytes:
        given = request.headers.get("authorization", "")
        if given.removeprefix("Bearer ") not in entra.tokens:
            return reply(401, "InvalidAuthenticationInfo")
        url = f"http://h{request.target}"
        signed = signature(decoded_key(KEY), ACCOUNT, request.method, url, request.headers)
        head = request.head.replace(given.encode(), signed.encode())
        return await proxy.forward(Request(request.method, request.target, head, request.headers, request.body))

    proxy.on_request = check


def settings(front: BlobServer) -> Settings:
    return Settings.load(az_endpoint=front.settings["az_endpoint"], store_patience=0.5)


async def test_a_managed_identity_logs_in_once(azurite: BlobServer, entra: Entra) -> None:
    url = await azurite.new_url()
    async with proxied(azurite) as (proxy, front):
        checking(proxy, entra)
        async with open_store(url, settings(front)) as store:
            for n in range(5):
                await store.put(f"key-{n}", b"body")
            assert len((await store.list("")).entries) == 5
    assert entra.asked == ["https://storage.azure.com"]


async def test_a_token_that_is_refused_is_fetched_anew(
    azurite: BlobServer, entra: Entra, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await azurite.new_url()
    async with proxied(azurite) as (proxy, front):
        checking(proxy, entra)
        async with open_store(url, settings(front)) as store:
            entra.tokens.clear()
            with pytest.raises(CredentialsExpired, match="InvalidAuthenticationInfo"):
                await store.put("key", b"body")  # it is new: another one would be refused, too
            monkeypatch.setattr("actorproc.connectors.shared.bearer_tokens._FRESH", 0.0)
            await store.put("key", b"body")
    assert len(entra.asked) == 2


async def test_a_missing_library_is_named(azurite: BlobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity.aio", None)
    with pytest.raises(UsageError, match=r"set az_account_key or az_sas_token, or .*install the extra 'azure-blob'"):
        async with open_store(await azurite.new_url(), settings(azurite)):
            pass


async def test_no_login_is_refused_saying_what_was_tried(azurite: BlobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_OTHERS, "IDENTITY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    with pytest.raises((StoreRefused, CredentialsExpired), match="no login by Microsoft Entra"):
        async with open_store(await azurite.new_url(), settings(azurite)):
            pass

"""Logins to Cloud Storage with Google's own library: by a key, default credentials, the metadata server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from actorproc.config.settings import Settings
from actorproc.errors import CredentialsExpired, StoreAccessError, StoreRefused, StoreUnavailable, UsageError
from actorproc.stores import open_store
from tests.connectors.gcs.server import GcsServer, double
from tests.servers import free_ports


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GcsServer]:
    """One that asks for a token."""
    with double(tmp_path) as found:
        await found.new_url()
        await found.ask("POST", "/double/tokens", {"needed": True})
        yield found


@pytest.fixture(autouse=True)
def _nothing_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def key(server: GcsServer) -> str:
    """A service account's key file, whose tokens the double gives out."""
    private = rsa.generate_private_key(65537, 2048)
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    fields = {
        "type": "service_account",
        "client_id": "1",
        "client_email": "host@project.iam.gserviceaccount.com",
        "private_key_id": "1",
        "private_key": private.private_bytes(*encoding).decode(),
        "token_uri": f"{server.endpoint}/token",
    }
    return json.dumps(fields)


def settings(server: GcsServer, **more: Any) -> Settings:
    return Settings.load(gs_endpoint=server.endpoint, store_patience=0.5, **more)


async def _use(server: GcsServer, **more: Any) -> None:
    async with open_store(await server.new_url(), settings(server, **more)) as store:
        await store.put("key", b"body")


async def test_a_key_in_a_file_logs_in(server: GcsServer, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(key(server))
    await _use(server, gs_service_account_key=f"@{tmp_path}/key.json")


async def test_the_usual_variable_names_a_key(
    server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.json").write_text(key(server))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    await _use(server)


async def test_a_machine_or_pod_in_the_cloud_logs_in_by_its_service_account(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_GCE_CHECK")
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, server.endpoint.removeprefix("http://"))
    await _use(server)


async def test_an_identity_of_another_provider_logs_in(
    server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workload identity federation, as of a pod outside of Google's cloud."""
    (tmp_path / "token").write_text("of.another.provider")
    config = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{server.endpoint}/token",
        "credential_source": {"file": str(tmp_path / "token")},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "config.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    await _use(server)


async def test_a_token_is_fetched_once_and_anew_when_it_is_refused(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def given_out() -> Any:
        return await server.ask("POST", "/double/tokens", {"needed": True})

    await given_out()
    async with open_store(await server.new_url(), settings(server, gs_service_account_key=key(server))) as store:
        for n in range(5):
            await store.put(f"key-{n}", b"body")
        assert await given_out() == 1, "and they are revoked now"
        monkeypatch.setattr("actorproc.connectors.shared.bearer_tokens._FRESH", 0.0)
        await store.put("key", b"later")
        assert await given_out() == 1


async def test_a_new_token_that_is_refused_is_an_error_at_once(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(await server.new_url(), settings(server, gs_service_account_key=key(server))) as store:
        await server.ask("POST", "/double/tokens", {"needed": True})
        with pytest.raises(CredentialsExpired, match=r"authError: Invalid Credentials; .*clock of this machine"):
            await store.put("key", b"body")


async def test_a_missing_library_is_named(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(UsageError, match=r"gs:// needs Google's login: install the extra 'gcs'"):
        await _use(server)


async def test_no_credentials_are_refused_saying_where_they_go(server: GcsServer) -> None:
    with pytest.raises(StoreRefused, match="no credentials found; set gs_service_account_key or GOOGLE_APPLICATION"):
        await _use(server)


async def test_a_login_that_does_not_answer_is_tried_again(server: GcsServer) -> None:
    (port,) = free_ports(1)
    away = json.dumps(json.loads(key(server)) | {"token_uri": f"http://127.0.0.1:{port}/token"})
    store = open_store(await server.new_url(), settings(server, gs_service_account_key=away))
    with pytest.raises(StoreUnavailable, match="no token from Google"):
        await store.__aenter__()


async def test_a_broken_private_key_is_refused(server: GcsServer) -> None:
    broken = json.dumps(json.loads(key(server)) | {"private_key": "no key"})
    with pytest.raises(
        StoreAccessError, match="the credentials are malformed; check gs_service_account_key"
    ) as refused:
        await _use(server, gs_service_account_key=broken)
    assert "no key" not in str(refused.value)


async def test_requests_without_a_login_are_refused(server: GcsServer) -> None:
    with pytest.raises(CredentialsExpired, match="Invalid Credentials"):
        await _use(server, gs_anonymous=True)

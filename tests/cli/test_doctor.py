"""`actorproc doctor`: it checks a store, and leaves nothing there."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actorproc.admin import doctor
from tests.cli.conftest import Run


def test_doctor_proves_a_folder_and_leaves_nothing_in_it(run: Run, tmp_path: Path) -> None:
    result = run("doctor", tmp_path / "place", "--json")
    assert result.exit_code == 0
    report = orjson.loads(result.stdout)
    assert report["safe"] is True
    assert all(found["held"] for found in report["properties"])
    assert {"create if absent", "stale match", "race of creates"} <= {found["name"] for found in report["properties"]}
    assert report["latency_ms"].keys() == {"get", "put", "put_if_absent", "put_if_match", "list", "delete"}
    files = [path for path in (tmp_path / "place").rglob("*") if path.is_file() and ".actorproc" not in path.parts]
    assert files == []


def test_doctor_of_a_folder_has_no_endpoint(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORPROC_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(doctor, "round", lambda *_: -0.0, raising=False)
    assert orjson.loads(run("doctor", tmp_path, "--json").stdout)["endpoint"] is None
    shown = run("doctor", tmp_path).stdout
    assert "127.0.0.1" not in shown
    assert "the store's is +0.0 s from" in shown


def test_doctor_fails_a_store_that_ignores_conditions(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorproc.stores.folder import FolderStore

    async def ignores(self: FolderStore, key: str, body: bytes) -> str:
        return await self.put(key, body)

    monkeypatch.setattr(FolderStore, "put_if_absent", ignores)
    result = run("doctor", tmp_path / "place")
    assert result.exit_code == 1
    assert "NOT safe to use: create if absent" in result.stdout


def test_doctor_reports_a_store_that_refuses_every_match(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actorproc.errors import ConditionFailed
    from actorproc.stores.folder import FolderStore

    async def refuses(self: FolderStore, key: str, body: bytes, tag: str) -> str:
        raise ConditionFailed(key)

    monkeypatch.setattr(FolderStore, "put_if_match", refuses)
    monkeypatch.setenv("ACTORPROC_STORE_PATIENCE", "50ms")
    report = run("doctor", tmp_path / "place", "--json")
    assert report.exit_code == 1, report.exception
    assert orjson.loads(report.stdout)["latency_ms"] == {}
    shown = run("doctor", tmp_path / "place")
    assert "NOT safe to use: match, race of matches" in shown.stdout
    assert "latency" not in shown.stdout
    files = [path for path in (tmp_path / "place").rglob("*") if path.is_file() and ".actorproc" not in path.parts]
    assert files == []


def test_doctor_leaves_nothing_in_a_failing_store(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actorproc.errors import StoreRefused
    from actorproc.stores.folder import FolderStore

    async def all_held(*_: object) -> list[object]:
        return []

    async def refuses(self: FolderStore, key: str, **_: object) -> None:
        raise StoreRefused("AccessDenied")

    monkeypatch.setattr(doctor, "probe", all_held)
    monkeypatch.setattr(FolderStore, "get", refuses)
    result = run("doctor", tmp_path / "place")
    assert result.exit_code != 0
    assert "AccessDenied" in result.stderr
    files = [path for path in (tmp_path / "place").rglob("*") if path.is_file() and ".actorproc" not in path.parts]
    assert files == []

"""Settings that stores declare: where they are read from, and that they stay secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from actorproc import plugins
from actorproc.config.settings import Settings
from actorproc.errors import SettingsError, UsageError
from actorproc.group.history import telling_settings
from actorproc.stores import open_store
from tests.plugin.packages import installed_package, look_again

STORE = """
from pydantic import BaseModel, Field
from actorproc.spi import Backend
class Options(BaseModel):
    blob_pin: str | None = Field(None, repr=False)
    blob_count: int = 1
    blob_state_bytes: int = 1
    state_bytes: int = 1
class Store(Backend):
    options = Options
    @classmethod
    def of_url(cls, url, options, *, settings, clock):
        raise ValueError(repr(options.model_dump()))
"""


@pytest.fixture(autouse=True)
def blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package with a store for `blob://` and `blob+x://`; its options begin with `blob_`."""
    points = {"stores": {"blob": "blob_store:Store", "blob+x": "blob_store:Store", "gone": "no_such_module:Store"}}
    monkeypatch.syspath_prepend(str(installed_package(tmp_path / "site", "blob-store", points, blob_store=STORE)))
    monkeypatch.chdir(tmp_path)
    look_again()
    yield
    look_again()


def test_a_keyword_beats_the_environment_which_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "actorproc.toml").write_text('blob_pin = "file"\nblob_count = 2\ns3_region = "file"')
    assert Settings.load().store_options == {"blob_pin": "file", "blob_count": 2, "s3_region": "file"}
    monkeypatch.setenv("actorproc_BLOB_pin", "environment")
    monkeypatch.setenv("ACTORPROC_S3_ENDPOINT", "http://s3")
    found = Settings.load(blob_count="3", s3_region=None)
    assert found.store_options == {
        "blob_pin": "environment", "blob_count": "3", "s3_region": "file", "s3_endpoint": "http://s3",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"'blob_pin': 'environment', 'blob_count': 3"):
        open_store("blob+x://place", found)


def test_a_variable_that_no_store_declares_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BLOB_PORT", "BLOB", "BLOBS_PIN", "S3_BUCKET"):
        monkeypatch.setenv(f"ACTORPROC_{name}", "x")
    assert Settings.load() == Settings()


def test_a_setting_of_the_core_stays_its_own_if_a_store_declares_the_name() -> None:
    settings = Settings.load(state_bytes="1MiB", blob_state_bytes=7)
    assert (settings.state_bytes, settings.store_options) == (2**20, {"blob_state_bytes": 7})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"blob_pinn": "hunter2"}, "blob_pinn: there is no such setting; did you mean blob_pin? (the store has blob_p"),
        (
            {"blob_unheard_of": "hunter2"},
            "blob_unheard_of: there is no such setting (the store has blob_pin, blob_count, ",
        ),
        ({"commit_intervall": 1}, "commit_intervall = 1: there is no such setting; did you mean commit_interval?"),
        ({"store_options": {"blob_pin": "hunter2"}}, "store_options: there is no such setting"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_known_ones(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.load(**given)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_store_that_cannot_be_imported_fails_only_where_its_settings_are_given() -> None:
    Settings.load(blob_pin="1")
    with pytest.raises(UsageError, match="gone of package blob-store"):
        Settings.load(gone_key="1")


def test_settings_without_options_of_stores_import_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load", lambda *_: pytest.fail("a store was imported"))
    monkeypatch.setenv("ACTORPROC_COMMIT_ROWS", "7")
    assert Settings.load(poll_interval=2).commit_rows == 7


def test_options_of_stores_are_kept_in_copies_and_shown_nowhere() -> None:
    settings = Settings.load(blob_pin="hunter2", commit_rows=7)
    for copy in (settings.model_copy(update={"commit_rows": 8}), pickle.loads(pickle.dumps(settings))):
        assert copy.store_options == {"blob_pin": "hunter2"}
    assert "hunter2" not in f"{settings!r}{settings}{settings.model_dump()}{telling_settings(settings)}"
    assert settings != Settings.load(commit_rows=7)

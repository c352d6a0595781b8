"""Values that begin with `@` name files. A secret that begins so is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorproc.config.options import with_secret
from actorproc.errors import SettingsError


@pytest.mark.parametrize("secret", ["@Sup3rS3cret", "@Sup3r/S3cret", "@Sup3rS3cret\0", "@" + "S3cret" * 100])
def test_a_secret_that_begins_with_an_at_is_not_shown(secret: str) -> None:
    with pytest.raises(SettingsError, match=r"s3_secret_key: begins with @, .* Write @@") as refused:
        with_secret("s3_secret_key", secret)
    assert "3cret" not in str(refused.value)


def test_a_file_and_a_doubled_at_give_the_secret(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    assert with_secret("key", f"@{tmp_path / 'key'}") == "from a file"
    assert with_secret("key", "@@plain") == "@plain"

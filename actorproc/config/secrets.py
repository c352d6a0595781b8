"""Options whose values may stand in files, so that secrets need not be in a setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actorproc.errors import SettingsError


def with_secrets(setting: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with the content of a file for each value `@PATH`. A value that begins with `@@` loses one `@`.

    Args:
        setting: that holds the options, for the message.

    Raises:
        SettingsError: a file cannot be read. Names the option and the file.
    """
    return {name: with_secret(f"{setting} {name}", value) for name, value in given.items()}


def with_secret(name: str, value: Any) -> Any:
    """The value, or the content of the file that `@PATH` names. A value that begins with `@@` loses one `@`.

    Args:
        name: of the setting, for the message.

    Raises:
        SettingsError: the file cannot be read.
    """
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    try:
        return Path(value[1:]).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} = {value}: the file cannot be read: {error}") from None

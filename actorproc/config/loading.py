"""Reads configuration from `actorproc.toml`, environment variables and keywords, and merges it by precedence."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from actorproc.errors import SettingsError

PREFIX = "ACTORPROC_"


def read_config(config: str | Path | None) -> dict[str, Any]:
    """The content of a TOML file. Default: `actorproc.toml` of the working directory, or {} if it does not exist.

    Raises:
        SettingsError: the file cannot be read, or `options` in it is not a table.
    """
    path = Path(config or "actorproc.toml")
    if config is None and not path.is_file():
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the settings file {path}: {error}") from None
    if not isinstance(content.get("options", {}), dict):
        raise SettingsError(f"{path}: options must be a table: a line [options], and below it name = value")
    return content


def merge(
    fields: Iterable[str],
    prefix: str,
    *,
    config: str | Path | None,
    file: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    keywords: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by name. A keyword beats an environment variable, which beats the file.

    Args:
        fields: names that environment variables can set, as `prefix` and the name in any case.

    Returns:
        The values, and by name the start of a message about the value: the file or variable that it came from.
    """
    values: dict[str, Any] = dict(file)
    origins = dict.fromkeys(file, f"{config or 'actorproc.toml'}: ")
    by_variable = {f"{prefix}{field}".upper(): field for field in fields}
    for variable, text in environment.items():
        if (field := by_variable.get(variable.upper())) is not None:
            values[field] = text
            origins[field] = f"{variable} in the environment: "
    return {**values, **keywords}, origins | dict.fromkeys(keywords, "")

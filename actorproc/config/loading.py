"""Reads configuration from `actorproc.toml`, environment variables and keywords, and merges it by precedence."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
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
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
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
    tables: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by name. A keyword beats an environment variable, which beats the file.

    Args:
        fields: names that environment variables can set, as `prefix` and the name in any case.
        tables: fields that are tables, or JSON objects as text. They are merged name by name.

    Returns:
        The values, and by name the start of a message about the value: the file or variable that it came from.
    """
    values: dict[str, Any] = dict(file)
    origins = dict.fromkeys(file, f"{config or 'actorproc.toml'}: ")
    by_variable = {f"{prefix}{field}".upper(): field for field in fields}
    for variable, text in environment.items():
        if (field := by_variable.get(variable.upper())) is not None:
            values[field] = _over(values.get(field), text) if field in tables else text
            origins[field] = f"{variable} in the environment: "
    above = {field: _over(values.get(field), value) if field in tables else value for field, value in keywords.items()}
    return {**values, **above}, origins | dict.fromkeys(keywords, "")


def _over(below: object, above: object) -> object:
    """Both tables as one; `above` alone if one of them is no table, which its validation then says."""
    lower, upper = _table(below), _table(above)
    return above if lower is None or upper is None else {**lower, **upper}


def _table(value: object) -> dict[str, Any] | None:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

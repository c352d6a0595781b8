"""Options of a source, a store or a sink, checked against their model. Their values may stand in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from actorproc.config.validation import explain, unknown_option, without_credentials
from actorproc.errors import SettingsError, UsageError

T = TypeVar("T", bound=BaseModel)


def parse_options(
    url: str,
    kind: type[T],
    given: Mapping[str, Any],
    *,
    of: Literal["source", "store", "sink"] = "source",
    **defaults: Any,
) -> T:
    """The options as they are now: files that `@PATH` names may have changed since, as a rotated key does.

    Args:
        url: of the source, store or sink, for the message.
        kind: declares the options. Others are refused, unless its `extra` is "allow".
        defaults: of options that are not given.

    Raises:
        UsageError: one is unknown or wrong, or its file cannot be read. Names the known ones.
    """
    if kind.model_config.get("extra") != "allow":
        known = [field.alias or name for name, field in kind.model_fields.items()]
        if unknown := sorted(given.keys() - set(known)):
            raise UsageError(unknown_option(of, url, unknown[0], known))
    options = defaults | with_secrets(f"{of} option", given)
    try:
        return kind(**options)
    except ValidationError as error:
        origins = dict.fromkeys({**kind.model_fields, **options}, f"{of} {without_credentials(url)}: {of} option ")
        raise UsageError(explain(error, kind, origins)) from None


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
    except (OSError, ValueError) as error:  # neither the value nor the error is shown: it may be a secret
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(
            f"{name}: begins with @, and the file that it names cannot be read: {why}. Write @@ for a value that "
            "itself begins with @"
        ) from None

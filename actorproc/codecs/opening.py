"""Opens the decoders that need no library of their own: JSON, text, CSV and Arrow."""

from __future__ import annotations

from pathlib import Path

from actorproc.codecs.json import JsonDecoder
from actorproc.codecs.limits import Limits
from actorproc.config.settings import Settings
from actorproc.errors import SettingsError
from actorproc.handler.decoder import Decoder
from actorproc.rows.output_schema import parse_schema
from actorproc.runtime.clock import Clock


def open_json(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = json`. Raises SettingsError: a schema is given."""
    _without_schema(settings)
    return JsonDecoder()


def open_text(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = text`. Raises SettingsError: a schema is given."""
    from actorproc.codecs.text import TextDecoder

    _without_schema(settings)
    return TextDecoder()


def open_arrow(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = arrow`. Raises SettingsError: a schema is given."""
    from actorproc.codecs.arrow import ArrowDecoder

    _without_schema(settings)
    return ArrowDecoder(limits_of(settings))


def open_csv(settings: Settings, *, clock: Clock) -> Decoder:
    """The decoder of `decode = csv`. Raises SettingsError, SchemaError: no schema, or a wrong one."""
    from actorproc.codecs.csv import CsvDecoder

    return CsvDecoder(parse_schema(schema_of(settings)))


def schema_of(settings: Settings, instead: str = "") -> str:
    """The setting `decode_schema`. Raises SettingsError: it is missing; names the alternative `instead`."""
    if settings.decode_schema is None:
        raise SettingsError(f"decode = {settings.decode} needs decode_schema{instead}")
    return settings.decode_schema


def schema_file(settings: Settings, instead: str = "") -> str:
    """The text of the file that `decode_schema` names. Raises SettingsError: it is missing, or cannot be read."""
    path = schema_of(settings, instead)
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"decode_schema = {path!r}: the file cannot be read: {error}") from None


def limits_of(settings: Settings) -> Limits:
    """The limits of a value."""
    return Limits(settings.max_value_rows, settings.max_value_bytes)


def _without_schema(settings: Settings) -> None:
    if settings.decode_schema is not None:
        raise SettingsError(f"decode_schema = {settings.decode_schema!r}: decode = {settings.decode} takes none")

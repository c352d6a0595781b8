"""Decoders: how the values of records become Python objects or columns. `open_decoder` makes one from settings."""

from __future__ import annotations

from collections.abc import Callable

from actorproc import plugins
from actorproc.codecs.json import JsonDecoder
from actorproc.config.settings import Settings
from actorproc.errors import SchemaError, SettingsError
from actorproc.handler.decoder import Decoder
from actorproc.runtime.clock import SYSTEM, Clock

__all__ = ["FROM_REGISTRY", "DecoderFactory", "JsonDecoder", "open_decoder", "open_key_decoder", "subject_of"]

FROM_REGISTRY = "registry:"
"""Begins a `decode_schema` or `output_schema` that names a subject of the schema registry."""

DecoderFactory = Callable[..., Decoder]
"""Makes a decoder: `make(settings, clock=clock)`. Registered as `actorproc.decoders` under the value of `decode`.

It fetches nothing yet, and raises SettingsError, or ValueError, OSError or SchemaError for a wrong `decode_schema`.
"""


def open_decoder(settings: Settings, *, clock: Clock = SYSTEM) -> Decoder:
    """The decoder that the settings name. Nothing is fetched yet.

    Raises:
        SettingsError: settings contradict each other, a schema is wrong, or an extra is not installed.
    """
    name, known = settings.decode, plugins.names(plugins.DECODERS)
    if name not in known:
        raise SettingsError(f"decode = {name!r}: there is no such decoder; there are: {', '.join(known)}")
    try:
        return plugins.make(plugins.DECODERS, name, Decoder, f"decode = {name}", settings, clock=clock)  # type: ignore[type-abstract]
    except SettingsError:
        raise
    except (ValueError, OSError, SchemaError) as error:
        raise SettingsError(f"decode_schema = {settings.decode_schema!r}: {error}") from None


def open_key_decoder(settings: Settings, *, clock: Clock = SYSTEM) -> Decoder | None:
    """The decoder of keys that the settings name, or None. Raises as `open_decoder`."""
    if settings.decode_key is None:
        return None
    keys = settings.model_copy(update={"decode": settings.decode_key, "decode_schema": settings.decode_key_schema})
    try:
        return open_decoder(keys, clock=clock)
    except SettingsError as error:
        raise SettingsError(f"of the keys (decode_key): {error}") from None


def subject_of(declared: object) -> str | None:
    """The subject that an `output_schema` names; None if it declares the columns itself."""
    is_named = isinstance(declared, str) and declared.startswith(FROM_REGISTRY)
    return str(declared).removeprefix(FROM_REGISTRY) if is_named else None

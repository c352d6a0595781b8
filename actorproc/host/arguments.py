"""Checks of the arguments of `Processor`, before anything is touched."""

from __future__ import annotations

import inspect
import os
import re
import socket
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from actorproc.codecs import subject_of
from actorproc.config.settings import Settings
from actorproc.config.store_options import store_options
from actorproc.errors import HandlerDefinitionError, SchemaError, UsageError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import is_ready_made
from actorproc.handler.decoder import Decoder
from actorproc.handler.hooks import Hooks
from actorproc.rows.output_schema import parse_schema
from actorproc.runtime.user_code import user_code
from actorproc.sources import LogSource, OutputSource
from actorproc.sources.protocol import Source
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME, overlap

_default_hosts = count(1)
_FOR_TESTS = {"keywords", "clock", "nudges"}  # parameters that are never suggested


def default_host() -> str:
    """This machine's name and the process id, and a number from the second call in this process on.

    So two processes on one machine are two hosts, as are two processors in one process.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._") or "host"
    number = next(_default_hosts)
    return f"{name}-{os.getpid()}" if number == 1 else f"{name}-{os.getpid()}-{number}"


def check_types(
    name: object,
    host: object,
    start_from: object,
    container: object,
    settings: object,
    hooks: object,
    decoder: object,
) -> None:
    """Raises UsageError: names the argument, its value and the types that are allowed."""
    for argument, value in (("name", name), ("host", host), ("start_from", start_from)):
        if not isinstance(value, str | None):
            raise UsageError(f"{argument} = {value!r}: a text, or None for the default")
    if not isinstance(container, str | os.PathLike | Store):
        raise UsageError(
            f"container = {container!r}: the URL of a store as text, such as 's3://bucket/state', a folder, "
            "or an opened Store"
        )
    if not isinstance(hooks, Hooks | None):
        raise UsageError(f"hooks = {hooks!r:.80}: an object of a subclass of actorproc.Hooks, or None")
    if not isinstance(decoder, Decoder | None):
        raise UsageError(f"decoder = {decoder!r:.80}: an object of a subclass of Decoder, or None")
    if not isinstance(settings, Settings | None):
        raise UsageError(
            f"settings = {settings!r:.80}: Settings(...), or none, and each as a keyword: commit_interval='1s'"
        )


def check_keywords(keywords: Mapping[str, object], callee: Callable[..., Any]) -> None:
    """Raises UsageError: a keyword is a misspelt parameter of `callee`, not a setting."""
    parameters = inspect.signature(callee).parameters.keys() - _FOR_TESTS
    for keyword, value in keywords.items():
        near = get_close_matches(keyword, [*parameters, *Settings.model_fields, *store_options([keyword])], n=1)
        if parameters.intersection(near):
            raise UsageError(f"{keyword} = {value!r}: Processor has no such argument; did you mean {near[0]}?")


def checked_settings(
    handler: type[PartitionHandler], settings: Settings | None, config: str | Path | None, keywords: Mapping[str, Any]
) -> Settings:
    """The settings, which are given, or come from keywords, environment and file.

    Raises:
        UsageError: they are wrong, or do not go with the handler.
    """
    if settings is None:
        settings = Settings.load(config, **keywords)
    elif also := [*keywords, *(["config"] if config else [])]:
        raise UsageError(f"give settings or {', '.join(also)}, not both")
    _check_auto_commit(handler, settings)
    _check_delivery(handler, settings)
    return settings


def declared_columns(handler: type[PartitionHandler], options: BaseModel) -> tuple[pa.Schema, str | None]:
    """The columns that the handler declares, or the subject of the schema registry that does.

    Raises:
        HandlerDefinitionError: `schema_for` failed.
        SchemaError: it returns no schema.
    """
    with user_code(f"{handler.__name__}.schema_for", HandlerDefinitionError):
        declared = handler.schema_for(options)
    subject = subject_of(declared)
    try:
        return parse_schema(None if subject is not None else declared), subject
    except SchemaError as error:
        raise SchemaError(f"{handler.__name__}: {error}") from None


def _check_auto_commit(handler: type[PartitionHandler], settings: Settings) -> None:
    """Raises UsageError: nobody would ever commit."""
    if not settings.auto_commit and is_ready_made(handler):
        raise UsageError(
            f"auto_commit = false cannot go with {handler.__name__}: with it only the handler commits, by ctx.commit() "
            "in its process, and this one's is ready-made and never does. Leave it on, or write a PartitionHandler"
        )


def _check_delivery(handler: type[PartitionHandler], settings: Settings) -> None:
    """Raises UsageError: while the other system is away, each record would become a dead letter."""
    if handler.exclusive and settings.delivery == "at-most-once":
        raise UsageError(
            f"delivery = 'at-most-once' cannot go with {handler.__name__}, whose exclusive is true: its position is in "
            "another system, and at-most-once delivery tries nothing again when that is away. Allowed: 'at-least-once'"
        )


def check_places(name: str, source: Source, store: Store) -> None:
    """Raises UsageError: the processor would read its own output, or mix its files with those of its source."""
    if isinstance(source, (LogSource, OutputSource)) and source.endpoint != store.backend.endpoint:
        return  # the same URL on two services is two places
    if str(source) == f"{OUTPUT_SCHEME}{store.url}/{name}":
        raise UsageError(f"{name} would read its own output, for ever: give it another name or container")
    if not isinstance(source, (LogSource, OutputSource)):
        return
    if store.url == source.url != "memory://":  # memory stores without a name are separate
        raise UsageError(
            f"source and container are the same place, {source.url}: the container must be another one than the log"
        )
    own, read = f"{store.url.rstrip('/')}/{name}", source.url.removeprefix(OUTPUT_SCHEME)
    if overlap(own, read):
        raise UsageError(
            f"{name} would keep what it owns at {own}, and the source is at {read}: neither may be, or lie in, the "
            "other. Give another container"
        )

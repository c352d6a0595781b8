"""Backends for memory, a folder and an S3 bucket. `open_store` chooses by URL."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from actorproc import plugins
from actorproc.config.options import parse_options
from actorproc.config.settings import Settings
from actorproc.config.validation import has_credentials
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.storage.backend import Backend
from actorproc.storage.store import Store, StoreLimits

OUTPUT_SCHEME = "actorproc+"
"""Prefix of the URL of a processor's output: `actorproc+CONTAINER/PROCESSOR`. It names a source, not a store."""

_LOCAL = ("file", "memory")
_QUERY = re.compile(r"\?[^/]*=")  # of a signed URL, which would become a part of every key

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?(.*)", re.DOTALL)  # two letters at least: not the drive of a path


def open_store(url: str | os.PathLike[str], settings: Settings | None = None, *, clock: Clock = SYSTEM) -> Store:
    """The store at `url`, not yet connected: `async with open_store(url) as store`.

    Args:
        url: `memory://name` (shared by that name within the process), `file:///absolute`, `file://relative` or a plain
            path (taken as they are: nothing is percent-decoded), `s3://bucket/prefix`.
        settings: for limits and credentials; default: environment and `actorproc.toml`.

    Raises:
        UsageError: the URL, or a setting that it needs, is malformed. Connecting raises it, too, for a file, and (as
            StoreAccessError) for a place that does not exist or denies access.
        StoreUnavailable: on connecting, if the store does not answer within `store_patience`.
    """
    settings = settings or Settings.load()
    limits = StoreLimits(settings.store_timeout, settings.store_patience, settings.store_concurrency)
    return Store(_backend(os.fspath(url), settings, clock), limits=limits, clock=clock)


def with_source_options(url: str, settings: Settings) -> Settings:
    """The settings for a source in a store: its source options are those of the store.

    So a log may lie in another account than the container. Options of the container count where it has no others.

    Raises:
        UsageError: the store does not take an option, or a value is wrong.
    """
    scheme = _split(url.removeprefix(OUTPUT_SCHEME))[0]
    if not settings.source_options or scheme not in plugins.names(plugins.STORES):
        return settings  # an unknown scheme fails where the store is opened
    kind, given = _kind(scheme), {**settings.store_options, **settings.source_options}
    parse_options(url, kind.options, _own(kind, settings) | settings.source_options)  # refuses wrong ones
    return settings.with_store_options(given).model_copy(update={"source_options": {}})


def own_url(url: str) -> str | None:
    """A URL of Spark or Hadoop as actorproc spells it. None: it is in no registered store.

    `file:/folder` becomes `file:///folder`; `s3a://bucket` becomes `s3://bucket`. A path stays as it is.
    """
    match = _SCHEME.fullmatch(url)
    scheme, slashes, rest = match.groups() if match else ("", None, "")
    if slashes is None and not rest.startswith("/"):
        return url
    known, scheme = plugins.names(plugins.STORES), scheme.lower()
    if slashes is None and scheme != "file":  # such as hdfs:/checkpoints
        return None
    found = scheme if scheme in known else next((name for name in known if scheme in _spellings(name)), None)
    return None if found is None else f"{found}://{rest}"


def _spellings(scheme: str) -> Sequence[str]:
    """None of a store that cannot be imported: that is not an error of other stores."""
    try:
        return _kind(scheme).spellings
    except UsageError:
        return ()


def given_store(argument: str, given: object, allowed: str, settings: Settings | None, clock: Clock) -> Store:
    """The value of `argument` if it is a Store, else the store at that URL.

    Raises:
        UsageError: it is neither. Names the argument, the value and what is `allowed`. Else as `open_store`.
    """
    if isinstance(given, Store):
        return given
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{argument} = {given!r}: {allowed}, or an opened Store")
    return open_store(given, settings, clock=clock)


def overlap(one: str, other: str) -> bool:
    """Whether one of two store URLs is inside the other, or equal to it. Stores in memory never overlap."""
    places = [_parts(url) for url in (one, other)]
    common = min(map(len, places))
    return places[0][0] != "memory" and places[0][:common] == places[1][:common]


def _parts(url: str) -> list[str]:
    scheme, _, path = url.partition("://")
    if scheme == "file":
        path = os.path.realpath(path)  # a link to a place is that place
    return [scheme, *(part for part in path.split("/") if part)]


def _backend(url: str, settings: Settings, clock: Clock) -> Backend:
    if url.startswith(OUTPUT_SCHEME):
        container, _, name = url.removeprefix(OUTPUT_SCHEME).rstrip("/").rpartition("/")
        raise UsageError(
            f"{url!r} is a processor's output: that is a source, and no log or container. Where a command takes a "
            f"processor's output in place of a log, give --name {name or 'PROCESSOR'} "
            f"--container {container or 'CONTAINER'}"
        )
    scheme, slashes, rest = _split(url)
    if slashes and scheme not in plugins.names(plugins.STORES):
        rest = rest.rpartition("@")[2].partition("?")[0]  # secrets may be before and behind
        own = own_url(f"{scheme}://{rest}")
        meant = f" (did you mean {own}?)" if own is not None else ""
        raise UsageError(f"store URL {scheme}://{rest} has the unknown scheme {scheme!r}{meant}: {_allowed()}")
    if not slashes or not rest:
        raise UsageError(f"store URL {url!r} is not complete: {_allowed()}")
    kind = _kind(scheme)
    url = kind.normal_url(f"{scheme}://{rest}")
    if scheme not in _LOCAL and (has_credentials(url) or _QUERY.search(url)):
        known = ", ".join(kind.options.model_fields) or "none"
        raise UsageError(
            f"a store URL must not contain credentials or a query (?sig=...); {scheme}:// has the settings {known}"
        )
    options = parse_options(url, kind.options, _own(kind, settings), of="store")
    with plugins.importing(plugins.STORES, scheme, f"store {scheme}://"):
        return kind.of_url(url, options, settings=settings, clock=clock)


def _own(kind: type[Backend], settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.store_options.items() if name in kind.options.model_fields}


def _kind(scheme: str) -> type[Backend]:
    kind = plugins.load(plugins.STORES, scheme)
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise UsageError(f"store {scheme}://: {kind!r:.100} is registered for it, and is no subclass of Backend")
    return kind


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, slashes behind it, and the rest. A path without a scheme, or with a colon in it, is a file."""
    match = _SCHEME.fullmatch(url)
    scheme, slashes, rest = match.groups() if match else ("file", "//", url)
    if not slashes and scheme not in plugins.names(plugins.STORES):
        return "file", "//", url
    return scheme, slashes or "", rest


def _allowed() -> str:
    """Without memory://NAME, which is for tests."""
    others = [f", {name}://..." for name in plugins.names(plugins.STORES) if name not in ("file", "memory", "s3")]
    return f"write file:///FOLDER, file://FOLDER, a plain path{''.join(others)}, or s3://BUCKET/PREFIX"

"""Finds sources, stores, decoders, encoders, sinks and commands by name, of actorproc itself and of other packages.

A package registers each as an entry point in its metadata (docs/extend.md). Our own plug-ins are registered in
the same way, in pyproject.toml. Nothing is imported before it is used: clients of services take long, or are extras.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from actorproc.errors import SettingsError, UsageError
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import set_up_now
from actorproc.runtime.requirements import how_to_install

T = TypeVar("T")

SOURCES = "actorproc.sources"
"""Group of sources, by URL scheme."""
STORES = "actorproc.stores"
"""Group of backends, by URL scheme."""
DECODERS = "actorproc.decoders"
"""Group of decoders, by the setting `decode`."""
ENCODERS = "actorproc.encoders"
"""Group of encoders, by the option `encode` of sinks."""
SINKS = "actorproc.sinks"
"""Group of sinks, by URL scheme."""
COMMANDS = "actorproc.commands"
"""Group of commands and groups of commands, by name."""

_CONNECTOR = re.compile(r"actorproc\.connectors\.(\w+)")  # the extra is named as the folder

OURS = "actorproc"
"""The package whose optional parts are extras."""


def names(group: str) -> list[str]:
    """The registered names, in order."""
    return sorted(_found(group))


def is_ours(group: str, name: str) -> bool:
    """Whether actorproc itself has registered this name."""
    return _package(_found(group)[name][0]) == OURS


def load(group: str, name: str) -> Any:
    """The object that is registered under this name.

    Raises:
        KeyError: there is none.
        UsageError: it cannot be imported, as where an extra is not installed; or two packages register the name.
    """
    registered = _found(group)[name]
    if len(registered) > 1:
        packages = " and ".join(sorted(set(map(_package, registered))))
        raise UsageError(f"{group}: {name!r} is registered by {packages}; uninstall one of them")
    if not is_ours(group, name):
        set_up_now()
    try:
        return registered[0].load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # whatever another package does when it is imported
        raise UsageError(f"{name}{_why(registered[0], error)}") from error


def _why(point: EntryPoint, error: BaseException) -> str:
    """Why a plug-in cannot be imported, and what to install."""
    why = str(error) if isinstance(error, ImportError) else format_error(error)
    if (package := _package(point)) != OURS:
        return f" of package {package}: {why}"
    folder = _CONNECTOR.match(point.module)
    if folder is None or not isinstance(error, ImportError):
        return f": {why}"
    return f": {why}: {how_to_install(folder[1].replace('_', '-'))}"


@contextmanager
def importing(group: str, name: str, what: str) -> Iterator[None]:
    """For the call of a registered factory, which may import a missing library.

    Args:
        what: the subject of the message, which needs it.

    Raises:
        SettingsError: a library is missing. Says how to install it, or which package needs it.
    """
    try:
        yield
    except ImportError as error:
        package = _package(_found(group)[name][0])
        how = how_to_install(name) if is_ours(group, name) else f"install what the package {package} needs"
        raise SettingsError(f"{what}: {error}: {how}") from error


def make(group: str, name: str, kind: type[T], what: str, *given: Any, **keywords: Any) -> T:
    """Call the factory that is registered under this name. `kind`: of the object; `what`: needs it, for the message.

    Raises:
        KeyError, UsageError: as `load` and `importing`, or the factory has made another kind of object.
    """
    factory = load(group, name)
    with importing(group, name, what):
        made = factory(*given, **keywords)
    if not isinstance(made, kind):
        raise SettingsError(f"{what}: what is registered for it made {made!r:.100}, not a {kind.__name__}")
    return made


def _package(point: EntryPoint) -> str:
    return str(point.dist.name) if point.dist is not None else "?"


@cache
def _found(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in _registered().select(group=group):
        same = found.setdefault(point.name, [])
        if all(point.value != other.value for other in same):  # one package may be found on two paths
            same.append(point)
    return found


@cache
def _registered() -> Any:
    """The entry points of all groups, read once: it takes a look at each package that is installed."""
    return entry_points()

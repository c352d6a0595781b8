"""Finds sources, stores, decoders and commands by name, of actorproc itself and of other packages.

A package registers each as an entry point in its metadata (docs/extend.md). What ships with actorproc is registered in
the same way, in pyproject.toml. Nothing is imported before it is used: clients of services take long, or are extras.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from actorproc.errors import UsageError
from actorproc.runtime.error_text import format_error

SOURCES = "actorproc.sources"
"""Group of sources, by URL scheme."""
STORES = "actorproc.stores"
"""Group of backends, by URL scheme."""
DECODERS = "actorproc.decoders"
"""Group of decoders, by the setting `decode`."""
COMMANDS = "actorproc.commands"
"""Group of commands and groups of commands, by name."""


def names(group: str) -> list[str]:
    """The registered names, in order."""
    return sorted(_found(group))


def load(group: str, name: str) -> Any:
    """The object that is registered under this name.

    Raises:
        KeyError: there is none.
        UsageError: it cannot be imported, as where an extra is not installed; or two packages register the name.
    """
    registered = _found(group)[name]
    if len(registered) > 1:
        packages = " and ".join(sorted({package_of(point) for point in registered}))
        raise UsageError(f"{group}: {name!r} is registered by {packages}; uninstall one of them")
    try:
        return registered[0].load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # whatever another package does when it is imported
        where = "" if (package := package_of(registered[0])) == "actorproc" else f" of package {package}"
        why = str(error) if isinstance(error, ImportError) else format_error(error)
        raise UsageError(f"{name}{where}: {why}") from error


def package_of(point: EntryPoint) -> str:
    """Name of the package that registers it."""
    return str(point.dist.name) if point.dist is not None else "?"


@cache
def _found(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        same = found.setdefault(point.name, [])
        if all(point.value != other.value for other in same):  # one package may be found on two paths
            same.append(point)
    return found

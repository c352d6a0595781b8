"""Makes the sinks that the setting `sinks` names, by the scheme of their URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from actorproc import plugins
from actorproc.config.validation import did_you_mean, has_credentials, without_credentials
from actorproc.errors import UsageError
from actorproc.runtime.clock import Clock
from actorproc.sinks.protocol import SinkPlace, SinkTarget
from actorproc.storage.names import checked_name

_SECRET_IN_QUERY = re.compile(r"(?i)[?& :;](sslpassword|password|passwd|pwd|secret|token|access_?key)\s*=")


def _named(name: str, text: str) -> str:
    """The message about a sink, with its name before its URL."""
    if text.startswith(f"sink {name}"):
        return text
    return f"sink {name} = {text.removeprefix('sink ')}" if text.startswith("sink ") else f"sink {name}: {text}"


def make_sink(name: str, given: str | Mapping[str, Any], *, processor: str, clock: Clock) -> SinkTarget:
    """The sink of this name.

    Args:
        given: its URL; or its options, with the URL as `url`.
        processor: whose rows it gets; the default name of a table.

    Raises:
        UsageError: URL or options are wrong. Nothing was touched.
    """
    checked_name("sink name", name)
    options = {"url": given} if isinstance(given, str) else dict(given)
    url = options.pop("url", None)
    known = plugins.names(plugins.SINKS)
    if not isinstance(url, str) or (":" not in url and url not in known):
        raise UsageError(f"sink {name}: give its URL, such as --sink {name}=postgresql://user@host/database")
    scheme = url.partition(":")[0]
    if scheme not in known:
        raise UsageError(
            f"sink {name} = {without_credentials(url)}: unknown scheme {scheme!r}{did_you_mean(scheme, known)} "
            f"(there are {', '.join(known)})"
        )
    if _SECRET_IN_QUERY.search(url):
        shown = url.partition("?")[0].split(" ")[0]
        raise UsageError(
            f"sink {name} = {without_credentials(shown)}: the URL must not contain a password or token: set an option, "
            "for example password to @/run/secrets/password"
        )
    if has_credentials(url) and url.partition("://")[2].partition("@")[0].partition(":")[2]:
        raise UsageError(
            f"sink {name} = {without_credentials(url)}: the URL must not contain a password: set the option password, "
            "for example to @/run/secrets/password"
        )
    try:
        return plugins.make(
            plugins.SINKS, scheme, SinkTarget, f"sink {name}",  # type: ignore[type-abstract]  # nothing is made of it here
            url, options, SinkPlace(name, processor, clock),
        )  # fmt: skip
    except UsageError as error:
        raise UsageError(_named(name, str(error))) from None

"""URLs of containers in Azure: `az://ACCOUNT/CONTAINER/prefix`, and as Spark spells them."""

from __future__ import annotations

import re
from typing import NamedTuple

from actorproc.errors import UsageError

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")  # it becomes part of a host name
_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
_ABFS = re.compile(r"abfss?://([^@/:]*)@([^./:]*)\.(?:dfs|blob)\.[^/:]*(/.*)?", re.DOTALL)
_FORM = "az://ACCOUNT/CONTAINER/prefix, or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/prefix"


class Address(NamedTuple):
    account: str
    container: str
    prefix: str
    """Of the keys; empty, or ends with '/'."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises UsageError: it names no account and container."""
        account, _, rest = normal_url(url).removeprefix("az://").partition("/")
        container, _, prefix = rest.partition("/")
        if not _ACCOUNT.fullmatch(account) or not _CONTAINER.fullmatch(container) or len(container) > 63:
            raise UsageError(
                f"store URL {url!r}: write {_FORM}. An account has 3 to 24 lower-case letters and digits, a container "
                "3 to 63, and single hyphens between them"
            )
        prefix = prefix.strip("/")
        return cls(account, container, f"{prefix}/" if prefix else "")

    @property
    def url(self) -> str:
        return f"az://{self.account}/{self.container}/{self.prefix}".rstrip("/")

    @property
    def service(self) -> str:
        """URL of the account's blob service in Azure's public cloud."""
        return f"https://{self.account}.blob.core.windows.net"


def normal_url(url: str) -> str:
    """An `abfss://` URL as `az://`; another one unchanged.

    Raises:
        UsageError: it begins with `abfss://`, and goes on in another way. Not shown: it may hold a secret.
    """
    if not url.startswith("abfs"):
        return url
    match = _ABFS.fullmatch(url)
    if match is None:
        raise UsageError(f"a store URL with abfss:// is not as it should be: write {_FORM}")
    container, account, path = match.groups()
    return f"az://{account}/{container}{path or ''}"

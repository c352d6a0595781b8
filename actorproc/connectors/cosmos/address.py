"""The container that a URL names, the options of its client, and clients for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from azure.cosmos.aio import CosmosClient
from pydantic import BaseModel, ConfigDict, Field

from actorproc.config.options import parse_options
from actorproc.connectors.shared.entra_login import EntraLogin
from actorproc.errors import UsageError

FORM = "cosmos://ACCOUNT/DATABASE/CONTAINER"
KEY = "COSMOS_KEY"


class CosmosOptions(BaseModel):
    """Options of the source, by name in `source_options`.

    Attributes:
        key: of the account; a read-only one will do. None: from COSMOS_KEY, else Microsoft Entra.
        mode: `latest` gives the latest version of each document, and no deletes. `all` gives every version and delete,
            as long as the account keeps them, and has no beginning.
        preferred_regions: names, separated by commas, nearest first.
        max_items: documents of a page, about; a page has at most 4 MB anyway.
        endpoint: instead of https://ACCOUNT.documents.azure.com, for an emulator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str | None = Field(None, repr=False)
    mode: Literal["latest", "all"] = "latest"
    preferred_regions: str = ""
    max_items: int = Field(1_000, ge=1)
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerAddress:
    """A container of an account.

    Attributes:
        given: options as they were given; a value `@PATH` stands for the content of a file.
    """

    url: str
    account: str
    database: str
    container: str
    given: Mapping[str, Any]

    @classmethod
    def of(cls, url: str, given: Mapping[str, Any]) -> ContainerAddress:
        """Raises UsageError: the URL is not of its form, or an option is wrong."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise UsageError(f"source {parts.scheme}://...@...: no credentials in a URL; set {KEY}")
        place = parts.path.strip("/").split("/")
        if parts.scheme != "cosmos" or not parts.netloc or parts.query or len(place) != 2 or not all(place):
            raise UsageError(f"source {url!r}: write {FORM}")
        address = cls(url, parts.netloc, place[0], place[1], given)
        address.options()
        return address

    def options(self) -> CosmosOptions:
        """The options as they are now. Raises UsageError as `parse_options`."""
        return parse_options(self.url, CosmosOptions, self.given, key=os.environ.get(KEY))

    def client(self, entra: EntraLogin) -> CosmosClient:
        """A client of the account. It repeats a throttled request four times, where its default is a hundred times.

        Args:
            entra: logs in where there is no key.
        """
        options = self.options()
        host = self.account if "." in self.account else f"{self.account}.documents.azure.com"
        regions = [name.strip() for name in options.preferred_regions.split(",") if name.strip()]
        return CosmosClient(
            options.endpoint or f"https://{host}:443/",
            options.key or entra.credential(),
            preferred_locations=regions,
            retry_throttle_total=1,
        )

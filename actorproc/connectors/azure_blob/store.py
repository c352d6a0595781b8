"""Objects in a container of Azure Blob Storage.

What is particular, and why:

- A tag is the ETag without quotes: listings have none, headers have them.
- There is no range from the end, so the end of a blob takes two requests: its size, then that range of that version.
- Listings begin at a name, inclusive, and since service version 2026-02-06; what an older service lists before is left
  out here.
- A refused create is 409 or 412. 412 is also the answer where somebody holds a lease, which decides nothing.

Protocol: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api
"""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate
from itertools import chain
from typing import Self
from urllib.parse import quote, urlencode
from xml.etree import ElementTree as ET

from actorproc.config.options import with_secrets
from actorproc.config.settings import Settings
from actorproc.connectors.azure_blob import container_warnings
from actorproc.connectors.azure_blob.address import Address, normal_url
from actorproc.connectors.azure_blob.answers import Refusal
from actorproc.connectors.azure_blob.login import Login
from actorproc.connectors.azure_blob.options import AzureBlobOptions, hadoop_of
from actorproc.connectors.azure_blob.pages import Page, parse_page
from actorproc.connectors.shared.http_store import HttpStore, Reply
from actorproc.errors import ConditionFailed, StoreError, StoreRefused, StoreUnavailable
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.storage.backend import Hadoop, Listing, NotModified, Stored

_VERSION = "2026-02-06"  # of the service's interface
PAGE = 5000  # maximal blobs of a listing
_CHANGES = 5  # attempts to read the end of a blob that changes meanwhile


class AzureBlobStore(HttpStore):
    """Blobs of a container, their names below a prefix."""

    options = AzureBlobOptions
    spellings = ("abfs",)

    @classmethod
    def of_url(cls, url: str, options: AzureBlobOptions, *, settings: Settings, clock: Clock) -> Self:
        return cls(Address.of(url), options, settings, clock=clock)

    @classmethod
    def normal_url(cls, url: str) -> str:
        return normal_url(url)

    def __init__(
        self, address: Address, options: AzureBlobOptions, settings: Settings, *, clock: Clock = SYSTEM
    ) -> None:
        service = options.az_endpoint or address.service
        hint = "az_endpoint" if options.az_endpoint else "the account's name in the URL"
        super().__init__(address.url, address.prefix, service, options.az_endpoint, hint, settings, clock)
        self._address = address
        self._options = options
        self._login = Login(address.url, address.account, options, lambda: _options_now(settings, options), clock)
        self._container = f"{service}/{address.container}"
        self._versioned = False

    @property
    def hadoop(self) -> Hadoop | None:
        return hadoop_of(self._address, self._options)

    async def close(self) -> None:
        await super().close()
        await self._login.close()

    async def warnings(self) -> Sequence[str]:
        container = await self._answer(f"{self._container}?restype=container")
        service = await self._answer(f"{self._service}/?restype=service&comp=properties")
        found = [*chain(container_warnings.of_container(container) if container else ())]
        found += container_warnings.of_service(service) if service else ()
        return [*found, container_warnings.VERSIONED] if self._versioned else found

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        what, known = self._what("get", key), {} if unless is None else {"If-None-Match": f'"{unless}"'}
        if tail is None:
            reply = await self._read(what, "GET", key, known)
            return None if reply is None else Stored(reply.body, self._tag(reply), len(reply.body))
        for _ in range(_CHANGES):
            reply = await self._read(what, "HEAD", key, known)
            if reply is None:
                return None
            tag, size = self._tag(reply), int(reply.headers.get("Content-Length", 0))
            if not size:
                return Stored(b"", tag, 0)
            same = {"If-Match": f'"{tag}"', "x-ms-range": f"bytes={max(0, size - tail)}-{size - 1}"}
            reply = await self._ask(what, "GET", self._blob(key), same)
            if reply.status == 206:
                return Stored(reply.body, tag, size)
            refusal = Refusal.of(reply)
            if not refusal.missing_key and not refusal.unmet:
                raise self._error(what, refusal)
        raise StoreUnavailable(f"{what}: it changes while its end is read")

    async def _read(self, what: str, method: str, key: str, condition: dict[str, str]) -> Reply | None:
        """None: there is no such blob. Raises NotModified."""
        reply = await self._ask(what, method, self._blob(key), condition)
        if reply.status == 200:
            return None if reply.headers.get("x-ms-meta-hdi_isfolder") == "true" else reply  # a directory
        if reply.status == 304:
            raise NotModified
        refusal = Refusal.of(reply)
        if refusal.missing_key:
            return None
        raise self._error(what, refusal)

    async def put(self, key: str, body: bytes) -> str:
        what = self._what("put", key)
        reply = await self._write(what, key, body, {})
        if reply.status == 201:
            return self._written(what, reply)
        raise self._error(what, Refusal.of(reply))

    async def put_if_absent(self, key: str, body: bytes) -> str:
        what = self._what("put_if_absent", key)
        reply = await self._write(what, key, body, {"If-None-Match": "*"})
        if reply.status == 201:
            return self._written(what, reply)
        refusal = Refusal.of(reply)
        if refusal.exists:
            raise ConditionFailed(f"{self.url}: {key!r} exists")
        raise self._error(what, refusal)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        what = self._what("put_if_match", key)
        reply = await self._write(what, key, body, {"If-Match": f'"{tag}"'})
        if reply.status == 201:
            return self._written(what, reply)
        refusal = Refusal.of(reply)
        if refusal.unmet or refusal.missing_key:
            raise ConditionFailed(f"{self.url}: {key!r} is gone, or is not {tag}")
        raise self._error(what, refusal)

    async def _write(self, what: str, key: str, body: bytes, condition: dict[str, str]) -> Reply:
        headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream", **condition}
        return await self._ask(what, "PUT", self._blob(key), headers, body)

    def _written(self, what: str, reply: Reply) -> str:
        self._versioned |= "x-ms-version-id" in reply.headers
        if "ETag" not in reply.headers:  # it is written; reading it back shows the tag
            raise StoreUnavailable(f"{what}: the answer has no ETag")
        return self._tag(reply)

    async def list_page(
        self, prefix: str, after: str = "", limit: int | None = None, page: str | None = None
    ) -> tuple[Listing, str | None]:
        """See `Backend.list_page`. With a hierarchical namespace 'b/c' is listed before 'b-c', and `after` and `limit`
        are understood in that order: there the two are good for keys of one folder."""
        what = self._what("list", prefix)
        wanted = PAGE if limit is None else min(PAGE, limit + bool(after))  # one more: it may begin with `after` itself
        query = {"restype": "container", "comp": "list", "prefix": self._prefix + prefix, "maxresults": str(wanted)}
        query |= {"startFrom": self._prefix + after} if after else {}
        query |= {"marker": page} if page is not None else {}
        reply = await self._ask(what, "GET", f"{self._container}?{urlencode(query, quote_via=quote)}")
        if reply.status != 200:
            raise self._error(what, Refusal.of(reply))
        entries, following = await self._parsed(reply.body)
        skip = len(self._prefix)
        found = [entry._replace(key=entry.key[skip:]) for entry in entries]
        return Listing([entry for entry in found if _follows(entry.key, after)][:limit], self._date(reply)), following

    async def delete(self, key: str) -> None:
        what = self._what("delete", key)
        reply = await self._ask(what, "DELETE", self._blob(key))
        if reply.status != 202 and not (refusal := Refusal.of(reply)).missing_key:
            raise self._error(what, refusal)

    async def _parsed(self, body: bytes) -> Page:
        try:
            return await self._clock.run_in_thread(parse_page, body)
        except (ET.ParseError, ValueError, KeyError) as error:
            raise StoreUnavailable(f"{self.url}: the answer to list is no listing: {error}") from error

    async def _answer(self, url: str) -> Reply | None:
        """None: the service refuses the question."""
        try:
            reply = await self._ask(self._what("look"), "GET", url)
        except StoreError:
            return None
        return reply if reply.status == 200 else None

    def _blob(self, key: str) -> str:
        return f"{self._container}/{quote(self._prefix + key, safe='/~')}"

    async def _ask(
        self, what: str, method: str, url: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        return await self._send(what, method, self._login.signed(url), headers, body)

    async def _authorized(self, method: str, url: str, headers: dict[str, str], size: int) -> dict[str, str]:
        headers |= {"x-ms-version": _VERSION, "x-ms-date": formatdate(self._clock.wall(), usegmt=True)}
        if method == "PUT":
            headers["Content-Length"] = str(size)
        authorization = await self._login.header(method, url, headers)
        return headers if authorization is None else headers | {"Authorization": authorization}

    def _error(self, what: str, refusal: Refusal) -> StoreError:
        error = refusal.error(what)
        if refusal.status not in (401, 403):
            return error
        return self._login.refused(error, unauthorized=refusal.unauthorized)

    def _tag(self, reply: Reply) -> str:
        try:
            return reply.headers["ETag"].strip('"')
        except KeyError:
            raise StoreRefused(f"{self.url}: answers without an ETag; this is no blob service") from None


def _options_now(settings: Settings, options: AzureBlobOptions) -> AzureBlobOptions:
    """The options, with a key or a signature from a file as the file has it now."""
    given = {name: settings.store_options.get(name) for name in ("az_account_key", "az_sas_token")}
    files = {name: value for name, value in given.items() if isinstance(value, str) and value.startswith("@")}
    return AzureBlobOptions(**dict(options) | with_secrets("store option", files))


def _follows(key: str, after: str) -> bool:
    """In the order of keys, or in that of folders."""
    return key > after or (key != after and key.split("/") > after.split("/"))

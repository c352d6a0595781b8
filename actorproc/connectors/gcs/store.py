"""Objects in a bucket of Google Cloud Storage, by its JSON interface, which Google's own clients use.

What is particular, and why:

- A tag is an object's generation: equal bodies have equal ETags, and conditions on writes are about generations.
- One object may be written about once a second. More writes are answered 429, which `Store` repeats later.
- Listings begin at a name, inclusive.

Protocol: https://docs.cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote, urlencode

import orjson

from actorproc.config.settings import Settings
from actorproc.connectors.gcs.answers import Refusal
from actorproc.connectors.gcs.bucket_warnings import FIELDS, bucket_warnings
from actorproc.connectors.gcs.login import Login
from actorproc.connectors.gcs.options import SERVICE, CloudStorageOptions, hadoop_of
from actorproc.connectors.shared.http_store import HttpStore, Reply
from actorproc.errors import ConditionFailed, StoreError, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.storage.backend import Entry, Hadoop, Listing, NotModified, Stored

_PAGE = 1000  # maximal objects of a listing
_BUCKET = "abcdefghijklmnopqrstuvwxyz0123456789-_."


class CloudStorageStore(HttpStore):
    """Objects of a bucket, their names below a prefix."""

    options = CloudStorageOptions

    @classmethod
    def of_url(cls, url: str, options: CloudStorageOptions, *, settings: Settings, clock: Clock) -> Self:
        bucket, _, prefix = url.removeprefix("gs://").partition("/")
        if not 3 <= len(bucket) <= 222 or bucket.strip(_BUCKET):
            raise UsageError(
                f"store URL {url!r}: write gs://BUCKET/prefix. A bucket's name has 3 to 63 lower-case letters, digits, "
                "'-', '_' and '.'"
            )
        prefix = prefix.strip("/")
        return cls(bucket, f"{prefix}/" if prefix else "", options, settings, clock=clock)

    def __init__(
        self, bucket: str, prefix: str, options: CloudStorageOptions, settings: Settings, *, clock: Clock = SYSTEM
    ) -> None:
        url = f"gs://{bucket}/{prefix}".rstrip("/")
        service = options.gs_endpoint or SERVICE
        super().__init__(url, prefix, service, options.gs_endpoint, "gs_endpoint", settings, clock)
        self._options = options
        self._login = Login(url, options, clock)
        self._bucket = f"/storage/v1/b/{bucket}"

    @property
    def hadoop(self) -> Hadoop | None:
        return hadoop_of(self.url, self._options)

    async def warnings(self) -> Sequence[str]:
        try:
            reply = await self._ask(self._what("look"), "GET", self._bucket, {"fields": FIELDS})
            return [*bucket_warnings(orjson.loads(reply.body), self._prefix)] if reply.status == 200 else ()
        except (StoreError, ValueError):
            return ()

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        what = self._what("get", key)
        query = {"alt": "media"} | ({} if unless is None else {"ifGenerationNotMatch": unless})
        path = f"/download{self._object(key)}"
        reply = await self._ask(what, "GET", path, query, {} if tail is None else {"Range": f"bytes=-{tail}"})
        if reply.status == 416:  # an object without bytes has no end that could be asked for
            reply = await self._ask(what, "GET", path, query)
        if reply.status == 304:
            raise NotModified
        if reply.status not in (200, 206):
            refusal = Refusal.of(reply)
            if refusal.missing_key:
                return None
            raise self._error(what, refusal)
        tag = reply.headers.get("x-goog-generation")
        if tag is None:
            raise StoreRefused(f"{self.url}: answers without a generation; this is no Cloud Storage")
        if tag == unless:  # from an emulator that does not know the condition
            raise NotModified
        part = reply.headers.get("Content-Range")
        size = len(reply.body) if part is None else int(part.rpartition("/")[2])
        return Stored(reply.body if tail is None else reply.body[-tail:], tag, size)

    async def put(self, key: str, body: bytes) -> str:
        what = self._what("put", key)
        reply = await self._write(what, key, body, {})
        if reply.status == 200:
            return self._written(what, reply)
        raise self._error(what, Refusal.of(reply), bucket=True)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        what = self._what("put_if_absent", key)
        reply = await self._write(what, key, body, {"ifGenerationMatch": "0"})
        if reply.status == 200:
            return self._written(what, reply)
        refusal = Refusal.of(reply)
        if refusal.unmet:
            raise ConditionFailed(f"{self.url}: {key!r} exists")
        raise self._error(what, refusal, bucket=True)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        what = self._what("put_if_match", key)
        reply = await self._write(what, key, body, {"ifGenerationMatch": tag})
        if reply.status == 200:
            return self._written(what, reply)
        refusal = Refusal.of(reply)
        if refusal.unmet:
            raise ConditionFailed(f"{self.url}: {key!r} is gone, or is not {tag}")
        raise self._error(what, refusal, bucket=True)

    async def _write(self, what: str, key: str, body: bytes, condition: dict[str, str]) -> Reply:
        query = {"uploadType": "media", "name": self._prefix + key, "fields": "generation", **condition}
        kind = {"Content-Type": "application/octet-stream"}
        return await self._ask(what, "POST", f"/upload{self._bucket}/o", query, kind, body)

    def _written(self, what: str, reply: Reply) -> str:
        try:
            return str(orjson.loads(reply.body)["generation"])
        except (ValueError, KeyError, TypeError):  # it is written; reading it back shows the generation
            raise StoreUnavailable(f"{what}: the answer has no generation") from None

    async def list_page(
        self, prefix: str, after: str = "", limit: int | None = None, page: str | None = None
    ) -> tuple[Listing, str | None]:
        """See `Backend.list_page`."""
        what = self._what("list", prefix)
        wanted = (
            _PAGE if limit is None else min(_PAGE, limit + bool(after))
        )  # one more: it may begin with `after` itself
        query = {
            "prefix": self._prefix + prefix,
            "maxResults": str(wanted),
            "fields": "items(name,generation,size,updated),nextPageToken",
        }
        query |= {"startOffset": self._prefix + after} if after else {}
        query |= {"pageToken": page} if page is not None else {}
        reply = await self._ask(what, "GET", f"{self._bucket}/o", query)
        if reply.status != 200:
            raise self._error(what, Refusal.of(reply), bucket=True)
        try:
            entries, following = await self._clock.run_in_thread(_parse, reply.body, len(self._prefix))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreUnavailable(f"{self.url}: the answer to list is no listing: {error}") from error
        return Listing([entry for entry in entries if entry.key > after][:limit], self._date(reply)), following

    async def delete(self, key: str) -> None:
        what = self._what("delete", key)
        reply = await self._ask(what, "DELETE", self._object(key))
        if reply.status not in (200, 204) and not (refusal := Refusal.of(reply)).missing_key:
            raise self._error(what, refusal)

    def _object(self, key: str) -> str:
        return f"{self._bucket}/o/{quote(self._prefix + key, safe='~')}"

    async def _ask(
        self,
        what: str,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Reply:
        url = f"{self._service}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        return await self._send(what, method, url, headers, body)

    async def _authorized(self, method: str, url: str, headers: dict[str, str], size: int) -> dict[str, str]:
        authorization = await self._login.header()
        return headers if authorization is None else headers | {"Authorization": authorization}

    def _error(self, what: str, refusal: Refusal, *, bucket: bool = False) -> StoreError:
        error = refusal.error(what, bucket=bucket)
        return self._login.refused(error) if refusal.unauthorized else error


def _parse(body: bytes, skip: int) -> tuple[list[Entry], str | None]:
    """Entries of a page, their keys without the first `skip` characters; and the token of the next page."""
    page: dict[str, Any] = orjson.loads(body)
    entries = [
        Entry(
            key=item["name"][skip:],
            tag=item["generation"],
            size=int(item["size"]),
            modified=datetime.fromisoformat(item["updated"]).timestamp(),
        )
        for item in page.get("items", ())
    ]
    return entries, page.get("nextPageToken") or None

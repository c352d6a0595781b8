"""Objects in a bucket of an S3 service with conditional writes (`If-None-Match` and `If-Match` on PUT).

Unusual settings, and their reasons:

- One request per call. aiohttp repeats a PUT whose connection breaks, below botocore and regardless of its settings,
  and then returns the 412 that the first attempt has caused. `Store` does all retries, also of reads, so each request
  is counted and has its own deadline.
- No `Expect: 100-continue`: one more round trip per PUT, and a hang on servers that never answer it.
- Checksums only where the API requires them, because several services refuse others. Bodies are signed or go over TLS.
- Listings are parsed here: botocore blocks the event loop for 0.1 s per 1,000 keys; this takes a tenth, in a thread.

Protocol: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.parse import unquote_plus, urlsplit
from xml.etree import ElementTree as ET

import aiohttp
import anyio
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore import exceptions as aws
from botocore.handlers import add_expect_header
from botocore.loaders import create_loader
from botocore.parsers import ResponseParserError

from actorproc.config.settings import Settings
from actorproc.config.validation import has_credentials
from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.send_once import sending_once
from actorproc.storage.backend import LANE, OUTSIDE, Backend, Entry, Hadoop, Listing, NotModified, Stored, all_pages
from actorproc.storage.user_agent import user_agent
from actorproc.stores.s3_bucket import bucket_warnings
from actorproc.stores.s3_errors import Answer, answered, unanswered
from actorproc.stores.s3_options import S3Options, hadoop_of

_PAGE = 1000  # maximal keys of a listing
_CONNECT_TIMEOUT = 5.0  # seconds
_Page = tuple[list[Entry], str | None]  # of a listing, and the token of the next page
_models = create_loader()  # shared, because reading them takes longer than connecting


class _SendOnce(AIOHTTPSession):  # type: ignore[misc, unused-ignore]
    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        return sending_once(session)


class S3Store(Backend):
    """Objects in `bucket`, their keys below `prefix` (empty, or ends with '/').

    Without keys and region in the options, the usual AWS chain applies (environment, profile, role).
    """

    options = S3Options
    spellings = ("s3a", "s3n")

    @classmethod
    def of_url(cls, url: str, options: S3Options, *, settings: Settings, clock: Clock) -> Self:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        prefix = prefix.strip("/")
        return cls(bucket, f"{prefix}/" if prefix else "", options, settings, clock=clock)

    @property
    def route(self) -> str | None:
        return urlsplit(self.endpoint).hostname if self.endpoint else OUTSIDE

    @property
    def hadoop(self) -> Hadoop:
        return hadoop_of(self.url, self._options)

    def __init__(
        self, bucket: str, prefix: str, options: S3Options, settings: Settings, *, clock: Clock = SYSTEM
    ) -> None:
        self.endpoint = options.s3_endpoint
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = prefix
        self._options = options
        self._settings = settings
        self._clock = clock
        self._stack = AsyncExitStack()
        self._client: Any = None

    async def open(self) -> None:
        """Connect and list one key, so that wrong settings fail here."""
        try:
            with self._errors("connect"):
                self._client = await self._stack.enter_async_context(self._new_client())
                self._client.meta.events.unregister("before-call.s3", add_expect_header)
                self._client.meta.events.register("before-parse.s3.ListObjectsV2", _keep_body)
            with anyio.fail_after(self._settings.store_timeout):
                await self.list("", limit=1)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.close()
            where = self.endpoint or "AWS"
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"{self.url}: no answer from {where} in {self._settings.store_timeout:g} s; check s3_endpoint and "
                    "the network, or raise store_timeout"
                ) from None
            if isinstance(error, ValueError):  # from botocore, such as for a host name with '_'
                raise UsageError(
                    f"{self.url}: {error}; check s3_endpoint (a whole URL, such as http://localhost:9000), the AWS "
                    "profile, and AWS_ENDPOINT_URL and the like in the environment"
                ) from error
            raise

    async def warnings(self) -> Sequence[str]:
        return await bucket_warnings(self._client, self._bucket, self._prefix)

    async def close(self) -> None:
        await self._stack.aclose()

    def _new_client(self) -> Any:
        given, settings = self._options, self._settings
        elsewhere = given.s3_endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if elsewhere is not None and has_credentials(elsewhere):
            raise UsageError("AWS_ENDPOINT_URL must not contain credentials: set AWS_ACCESS_KEY_ID and the like")
        path_style = elsewhere is not None if given.s3_path_style is None else given.s3_path_style
        session = get_session()
        session.register_component("data_loader", _models)
        return session.create_client(
            "s3",
            endpoint_url=given.s3_endpoint,
            region_name=given.s3_region or session.get_config_variable("region") or "us-east-1",
            aws_access_key_id=given.s3_access_key,
            aws_secret_access_key=given.s3_secret_key,
            config=AioConfig(
                http_session_cls=_SendOnce,
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=min(_CONNECT_TIMEOUT, settings.store_timeout),
                read_timeout=settings.store_timeout,
                max_pool_connections=settings.store_concurrency + LANE,
                s3={"addressing_style": "path" if path_style else "auto"},
                user_agent_extra=user_agent(settings),
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                warm_up_loader_caches=True,  # reads its models in a thread
            ),
        )

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        with self._errors("get", key):
            try:
                return await self._get(key, unless, tail)
            except aws.ClientError as error:
                answer = Answer.of(error)
                if answer.status == 304:
                    raise NotModified from None
                if answer.missing_key:
                    return None
                if answer.status != 416:
                    raise
            return await self._get(key, unless, None)  # an object without bytes has no end that could be asked for

    async def _get(self, key: str, unless: str | None, tail: int | None) -> Stored:
        wish: dict[str, str] = {}
        if unless is not None:
            wish["IfNoneMatch"] = unless
        if tail is not None:
            wish["Range"] = f"bytes=-{tail}"
        reply = await self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **wish)
        async with reply["Body"] as stream:
            body: bytes = await stream.read()
        size = int(reply["ContentRange"].rpartition("/")[2]) if "ContentRange" in reply else len(body)
        return Stored(body if tail is None else body[-tail:], self._tag(reply), size)

    async def put(self, key: str, body: bytes) -> str:
        with self._errors("put", key):
            return await self._put(key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        with self._errors("put_if_absent", key):
            try:
                return await self._put(key, body, IfNoneMatch="*")
            except aws.ClientError as error:
                if Answer.of(error).status == 412:
                    raise ConditionFailed(f"{self.url}: {key!r} exists") from None
                raise

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        with self._errors("put_if_match", key):
            try:
                return await self._put(key, body, IfMatch=tag)
            except aws.ClientError as error:
                answer = Answer.of(error)
                if answer.status == 412 or answer.missing_key:
                    raise ConditionFailed(f"{self.url}: {key!r} is gone, or is not {tag}") from None
                raise

    async def _put(self, key: str, body: bytes, **condition: str) -> str:
        reply = await self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=body, **condition)
        if condition and "ETag" not in reply:  # it is written; reading it back shows the tag
            raise StoreUnavailable(f"{self.url}: the answer to a write of {key!r} has no ETag")
        return self._tag(reply)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        """See `Backend.list`. A service that keeps folders (SeaweedFS) lists 'b/c' before 'b-c', and understands
        `after` and `limit` in that order: there the two are good for keys of one folder."""
        return await all_pages(lambda wanted, page: self.list_page(prefix, after, wanted, page), limit)

    async def list_page(
        self, prefix: str, after: str = "", limit: int | None = None, page: str | None = None
    ) -> tuple[Listing, str | None]:
        """See `Backend.list_page`."""
        ask = {"ContinuationToken": page} if page is not None else {"StartAfter": self._prefix + after} if after else {}
        with self._errors("list", prefix):
            reply = await self._client.list_objects_v2(
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                MaxKeys=_PAGE if limit is None else min(_PAGE, limit),
                **ask,
            )
        entries, following = await self._parsed(reply["Page"])
        skip = len(self._prefix)
        entries = [entry._replace(key=entry.key[skip:]) for entry in entries] if skip else entries
        return Listing(entries, self._date(reply)), following

    async def delete(self, key: str) -> None:
        with self._errors("delete", key):
            await self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    async def _parsed(self, page: bytes) -> _Page:
        try:
            return await self._clock.run_in_thread(_parse, page)
        except (ET.ParseError, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{self.url}: the answer to list is no listing: {error}") from error

    def _tag(self, reply: dict[str, Any]) -> str:
        try:
            return str(reply["ETag"])
        except KeyError:
            raise StoreRefused(f"{self.url}: answers without an ETag; this is no S3 service that can be used") from None

    def _date(self, reply: dict[str, Any]) -> float:
        try:
            return parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
        except (KeyError, ValueError):
            raise StoreRefused(f"{self.url}: answers without a Date header, from which ages are counted") from None

    @contextmanager
    def _errors(self, verb: str, key: str = "") -> Iterator[None]:
        """Turn errors of the client into ours."""
        what = f"{self.url}: {verb} {key!r}" if key else f"{self.url}: {verb}"
        try:
            yield
        except aws.ClientError as error:
            raise answered(what, Answer.of(error)) from error
        except (aws.BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError) as error:
            raise unanswered(what, self.endpoint or "AWS", error) from error


def _keep_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Put a listing aside before botocore parses it. (An event of botocore's, as its own handlers use it.)"""
    if response_dict["status_code"] == 200:
        customized_response_dict["Page"] = response_dict["body"]
        response_dict["body"] = b"<ListBucketResult/>"


def _parse(page: bytes) -> _Page:
    """Entries of a ListBucketResult, and the token that continues it.

    Raises:
        ParseError, ValueError, TypeError: it is something else.
    """
    root = ET.fromstring(page)  # noqa: S314 (expat of today refuses to blow up entities; the service is trusted)
    space = root.tag[: root.tag.find("}") + 1]  # '{http://s3.amazonaws.com/doc/2006-03-01/}', or nothing
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it begins with <{root.tag}>")
    plain = root.findtext(f"{space}EncodingType") != "url"
    entries = [
        Entry(
            key=item.findtext(f"{space}Key", "") if plain else unquote_plus(item.findtext(f"{space}Key", "")),
            tag=item.findtext(f"{space}ETag", ""),
            size=int(item.findtext(f"{space}Size", "")),
            modified=datetime.fromisoformat(item.findtext(f"{space}LastModified", "")).timestamp(),
        )
        for item in root.iter(f"{space}Contents")
    ]
    return entries, root.findtext(f"{space}NextContinuationToken") or None

"""A double of Cloud Storage's JSON interface, as its reference describes it: what actorproc asks, strictly.

    python -m tests.connectors.gcs.double PORT [WRITES_PER_SECOND]

Everything is in memory, with one thread, so each request is one step. A query that it does not know is refused, so that
nothing is taken for granted. It knows generations and their preconditions, pages, ranges, missing buckets, the limit of
writes to one object, tokens of a service account and of a metadata server, and the settings of buckets.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import count
from typing import Any
from urllib.parse import unquote

from aiohttp import web

TOKEN_LIFE = 3600
_LIST = {"prefix", "startOffset", "maxResults", "pageToken", "fields"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Object:
    body: bytes
    generation: int
    time: float


@dataclass
class Bucket:
    objects: dict[str, Object] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


class Refused(Exception):
    """An error as the service words it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        errors = [{"message": message, "domain": "global", "reason": reason}]
        self.answer = web.json_response(
            {"error": {"code": status, "message": message, "errors": errors}}, status=status
        )


class CloudStorage:
    """The service. `writes_per_second`: to one object; None: as many as come."""

    def __init__(self, writes_per_second: float | None = None) -> None:
        self._pace = writes_per_second
        self._buckets: dict[str, Bucket] = {}
        self._written: dict[tuple[str, str], float] = {}
        self._generations = count(int(time.time() * 1e6))
        self._tokens: dict[str, float] = {}
        self._needs_token = False

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30, middlewares=[_refusals])
        routes = app.router
        routes.add_get("/", self._alive)
        routes.add_post("/storage/v1/b", self._create_bucket)
        routes.add_get("/storage/v1/b/{bucket}", self._show_bucket)
        routes.add_patch("/storage/v1/b/{bucket}", self._set_bucket)
        routes.add_delete("/storage/v1/b/{bucket}", self._delete_bucket)
        routes.add_get("/storage/v1/b/{bucket}/o", self._list)
        routes.add_post("/upload/storage/v1/b/{bucket}/o", self._upload)
        routes.add_get("/download/storage/v1/b/{bucket}/o/{key:.+}", self._download)
        routes.add_delete("/storage/v1/b/{bucket}/o/{key:.+}", self._delete)
        routes.add_post("/token", self._token)
        routes.add_get("/computeMetadata/v1/{path:.*}", self._metadata)
        routes.add_post("/double/tokens", self._set_tokens)
        return app

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(headers={"Metadata-Flavor": "Google"})

    # Buckets

    async def _create_bucket(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["name"] in self._buckets:
            raise Refused(409, "conflict", "Your previous request to create the named bucket succeeded.")
        self._buckets[asked["name"]] = Bucket(settings=asked)
        return web.json_response(asked)

    async def _show_bucket(self, request: web.Request) -> web.Response:
        fields = request.query.get("fields", "").split(",")
        settings = self._bucket(request).settings
        return web.json_response({name: settings[name] for name in fields if name in settings})

    async def _set_bucket(self, request: web.Request) -> web.Response:
        self._bucket(request).settings = await request.json()
        return web.json_response({})

    async def _delete_bucket(self, request: web.Request) -> web.Response:
        if self._bucket(request).objects:
            raise Refused(409, "conflict", "The bucket you tried to delete is not empty.")
        del self._buckets[request.match_info["bucket"]]
        return web.Response(status=204)

    def _bucket(self, request: web.Request) -> Bucket:
        self._authorize(request)
        try:
            return self._buckets[request.match_info["bucket"]]
        except KeyError:
            raise Refused(404, "notFound", "The specified bucket does not exist.") from None

    # Objects

    async def _list(self, request: web.Request) -> web.Response:
        query, bucket = _known(request, _LIST), self._bucket(request)
        prefix, most = query.get("prefix", ""), min(1000, int(query.get("maxResults", 1000)))
        start = max(prefix, query.get("startOffset", ""), key=_utf8)
        keys = sorted(bucket.objects, key=_utf8)
        first = bisect_left(keys, _utf8(start), key=_utf8)
        if "pageToken" in query:
            after = base64.b64decode(query["pageToken"])
            while first < len(keys) and _utf8(keys[first]) <= after:
                first += 1
        found = [key for key in keys[first:] if key.startswith(prefix)]
        page: dict[str, Any] = {"items": [_described(key, bucket.objects[key]) for key in found[:most]]}
        if len(found) > most:
            page["nextPageToken"] = base64.b64encode(_utf8(found[most - 1])).decode()
        return web.json_response({name: value for name, value in page.items() if value})

    async def _upload(self, request: web.Request) -> web.Response:
        body = await request.read()
        query = _known(request, {"uploadType", "name", "ifGenerationMatch", "fields"})
        if query["uploadType"] != "media":
            raise Refused(400, "invalid", f"uploadType {query['uploadType']!r} is not in this double")
        bucket, key = self._bucket(request), query["name"]
        old = bucket.objects.get(key)
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != (old.generation if old else 0):
            raise Refused(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        self._pace_writes(request.match_info["bucket"], key)
        bucket.objects[key] = Object(body, next(self._generations), time.time())
        return web.json_response(_described(key, bucket.objects[key]))

    async def _download(self, request: web.Request) -> web.Response:
        query = _known(request, {"alt", "ifGenerationNotMatch"})
        assert query["alt"] == "media"
        _, found = self._object(request)
        if query.get("ifGenerationNotMatch") == str(found.generation):
            return web.Response(status=304)
        digest = base64.b64encode(hashlib.md5(found.body).digest()).decode()
        headers = {
            "x-goog-generation": str(found.generation),
            "x-goog-hash": f"md5={digest}",
            "Content-Type": "application/octet-stream",
        }
        wanted = request.headers.get("Range")
        if wanted is None:
            return web.Response(body=found.body, headers=headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        size = len(found.body)
        begin = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if begin >= size:
            return web.Response(status=416, text="The requested range cannot be satisfied.")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return web.Response(status=206, body=found.body[begin:end], headers=headers)

    async def _delete(self, request: web.Request) -> web.Response:
        _known(request, set())
        key, _ = self._object(request)
        del self._bucket(request).objects[key]
        return web.Response(status=204)

    def _object(self, request: web.Request) -> tuple[str, Object]:
        bucket = self._bucket(request)
        key = unquote(request.raw_path.partition("?")[0].partition("/o/")[2])  # not as aiohttp normalises it
        if key not in bucket.objects:
            raise Refused(404, "notFound", f"No such object: {request.match_info['bucket']}/{key}")
        return key, bucket.objects[key]

    def _pace_writes(self, bucket: str, key: str) -> None:
        """Of one object, like https://docs.cloud.google.com/storage/quotas#objects: more may pass, but need not."""
        now = time.monotonic()
        if self._pace is not None and now - self._written.get((bucket, key), 0) < 1 / self._pace:
            raise Refused(
                429,
                "rateLimitExceeded",
                f"The object {bucket}/{key} exceeded the rate limit for object mutation operations (create, update, "
                "and delete). Please reduce your request rate.",
            )
        self._written[bucket, key] = now

    # Login

    async def _token(self, request: web.Request) -> web.Response:
        """For the signed claim of a service account, or the token of another provider of identities."""
        asked = await request.post()
        assert str(asked.get("assertion") or asked["subject_token"]).count(".") == 2
        return self._new_token()

    async def _metadata(self, request: web.Request) -> web.Response:
        """As a machine or pod in Google's cloud asks for its service account."""
        assert request.headers["Metadata-Flavor"] == "Google"
        path = request.match_info["path"].rstrip("/")
        flavor = {"Metadata-Flavor": "Google"}
        if path.endswith("/token"):
            return self._new_token(flavor)
        if path.endswith(("/universe-domain", "/universe_domain")):
            return web.Response(text="googleapis.com", headers=flavor)
        return web.json_response({"email": "pod@project.iam", "scopes": [], "aliases": ["default"]}, headers=flavor)

    def _new_token(self, headers: dict[str, str] | None = None) -> web.Response:
        token = f"token-{next(self._generations)}"
        self._tokens[token] = time.time() + TOKEN_LIFE
        answer = {"access_token": token, "expires_in": TOKEN_LIFE, "token_type": "Bearer"}
        answer["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
        return web.json_response(answer, headers=headers)

    async def _set_tokens(self, request: web.Request) -> web.Response:
        """Whether requests need a token; those given out so far are revoked. Returns how many there were."""
        self._needs_token, given = (await request.json())["needed"], len(self._tokens)
        self._tokens.clear()
        return web.json_response(given)

    def _authorize(self, request: web.Request) -> None:
        if not self._needs_token:
            return
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._tokens.get(token, 0) < time.time():
            raise Refused(401, "authError", "Invalid Credentials")


@web.middleware
async def _refusals(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        answer = await handler(request)
    except Refused as refused:
        answer = refused.answer
    answer.headers["Date"] = formatdate(usegmt=True)
    return answer


def _known(request: web.Request, names: set[str]) -> dict[str, str]:
    if unknown := request.query.keys() - names:
        raise Refused(400, "invalid", f"the double does not know {sorted(unknown)}")
    return dict(request.query)


def _described(key: str, found: Object) -> dict[str, str]:
    at = datetime.fromtimestamp(found.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"name": key, "generation": str(found.generation), "size": str(len(found.body)), "updated": at}


def _utf8(text: str) -> bytes:
    return text.encode()


if __name__ == "__main__":
    pace = float(sys.argv[2]) if len(sys.argv) > 2 else None
    web.run_app(CloudStorage(pace).app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)

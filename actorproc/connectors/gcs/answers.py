"""What Cloud Storage's answers mean: refusals as errors of ours, with the remedy.

https://docs.cloud.google.com/storage/docs/json_api/v1/status-codes
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from actorproc.connectors.shared.http_store import Reply
from actorproc.errors import CredentialsExpired, StoreError, StoreRefused, StoreUnavailable

_TRY_AGAIN = {408, 429}  # and 5xx
_TOO_MANY = {429, 503}
_TOO_MANY_REASONS = {"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"}  # some of them come with 403
_NO_OBJECT = re.compile(r"no such object|^not found$", re.IGNORECASE)
_NO_BUCKET = re.compile(r"bucket does not exist", re.IGNORECASE)
_KEYS = "gs_service_account_key, or the application default credentials (GOOGLE_APPLICATION_CREDENTIALS)"
_ADVICE = {
    401: f"the credentials are unknown or have expired; check {_KEYS} and the clock of this machine",
    403: "these credentials need storage.objects.list, get, create and delete on the bucket: the role 'Storage Object "
    "User'",
}
_REASONS = {
    "retentionPolicyNotMet": "remove the bucket's retention policy: hosts rewrite and delete their own objects",
    "objectUnderActiveHold": "release the hold, and do not put objects under one by default",
    "userProjectMissing": "the bucket lets requesters pay, which actorproc does not do",
}


class Refusal(NamedTuple):
    """An answer that is no success."""

    status: int
    reason: str
    message: str

    @classmethod
    def of(cls, reply: Reply) -> Refusal:
        """Reads either form: an error as JSON, or text, as uploads and downloads may be answered."""
        try:
            said: Any = orjson.loads(reply.body)["error"]
            reasons = said.get("errors") or [{}]
            return cls(reply.status, str(reasons[0].get("reason", "")), str(said.get("message", "")))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return cls(reply.status, "", reply.body[:300].decode(errors="replace"))

    @property
    def missing_key(self) -> bool:
        """Said by the service itself: another 404 may be of a proxy, or about the bucket."""
        return (
            self.status == 404
            and (self.reason == "notFound" or _NO_OBJECT.search(self.message) is not None)
            and (_NO_BUCKET.search(self.message) is None)
        )

    @property
    def unmet(self) -> bool:
        """The condition of a write does not hold. (412 also says that a policy of the organisation forbids it.)"""
        return self.status == 412 and self.reason in ("", "conditionNotMet")

    @property
    def unauthorized(self) -> bool:
        return self.status == 401

    def error(self, what: str, *, bucket: bool = False) -> StoreError:
        """`what`: where and what was tried. `bucket`: it asked for no object, so 404 means that there is no bucket."""
        text = f"{what}: {self.reason or self.status}: {self.message.strip().partition(chr(10))[0]}".rstrip(": .")
        throttled = self.status in _TOO_MANY or self.reason in _TOO_MANY_REASONS
        if throttled or self.status in _TRY_AGAIN or (self.status >= 500 and self.status != 501):
            unavailable = StoreUnavailable(text)
            unavailable.throttled = throttled
            return unavailable
        if self.status == 404 and (bucket or not self.missing_key):
            return StoreRefused(f"{text}; create the bucket, or correct its name in the URL")
        advice = _REASONS.get(self.reason) or _ADVICE.get(self.status)
        kind = CredentialsExpired if self.unauthorized else StoreRefused
        return kind(f"{text}; {advice}" if advice else text)

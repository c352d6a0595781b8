"""What Azure's answers mean: refusals as errors of ours, with the remedy.

https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
"""

from __future__ import annotations

from typing import NamedTuple
from xml.etree import ElementTree as ET

from actorproc.connectors.shared.http_store import Reply
from actorproc.errors import CredentialsExpired, StoreError, StoreRefused, StoreUnavailable

_TRY_AGAIN = {408, 429}  # and 5xx
_TOO_MANY = {429, 503}  # ServerBusy: more than the account or the partition of its index takes
_UNMET = {"", "ConditionNotMet", "TargetConditionNotMet"}
_ROLE = "the role 'Storage Blob Data Contributor' on the container; a new assignment takes up to ten minutes"
_KEYS = "az_account_key or az_sas_token, or the login by Microsoft Entra"
_LEASE = "somebody holds a lease on it: break the lease, and let nobody lease what actorproc writes"
_IMMUTABLE = "remove the policy of immutability or the legal hold: hosts rewrite and delete their own objects"
_ADVICE = {
    "ContainerNotFound": "create the container, or correct its name in the URL",
    "ContainerBeingDeleted": "it is being deleted; create it anew in a minute, or correct its name in the URL",
    "AuthenticationFailed": f"check {_KEYS}, and the clock of this machine",
    "AuthorizationFailure": f"check {_KEYS}: it is wrong or lacks rights, or the account's firewall refuses it",
    "AuthorizationPermissionMismatch": f"these credentials need {_ROLE}; a signature needs sp=racwdl",
    "AuthorizationResourceTypeMismatch": "the signature needs srt=co, or be one of the container",
    "AuthorizationServiceMismatch": "the signature is not for the blob service (ss=b)",
    "AuthorizationSourceIPMismatch": "the signature is not for the address of this machine",
    "InsufficientAccountPermissions": f"these credentials need {_ROLE}",
    "InvalidAuthenticationInfo": f"the credentials are malformed or have expired; check {_KEYS}",
    "KeyBasedAuthenticationNotPermitted": "the account refuses keys: leave az_account_key out, and log in by Microsoft "
    "Entra",
    "NoAuthenticationInformation": f"no credentials; set {_KEYS}",
    "UnauthorizedBlobOverwrite": "the signature lacks the right to overwrite (sp=racwdl)",
    "BlobImmutableDueToPolicy": _IMMUTABLE,
    "BlobImmutableDueToLegalHold": _IMMUTABLE,
    "BlobArchived": "it was moved to the archive, where nothing can be read: take it out, and change that rule",
    "SnapshotsPresent": "delete the snapshots that somebody has made of it, and let nobody make more",
    "LeaseIdMissing": _LEASE,
    "LeaseLost": _LEASE,
    "AccountIsDisabled": "the storage account is disabled",
}


class Refusal(NamedTuple):
    """An answer that is no success."""

    status: int
    code: str
    message: str

    @classmethod
    def of(cls, reply: Reply) -> Refusal:
        code, message = reply.headers.get("x-ms-error-code", ""), ""
        try:
            root = ET.fromstring(reply.body)  # noqa: S314 (expat of today refuses to blow up entities)
            code = code or root.findtext("Code", "")
            message = f"{root.findtext('Message', '')}\n{root.findtext('AuthenticationErrorDetail', '')}"
        except ET.ParseError:
            pass
        return cls(reply.status, code, message)

    @property
    def missing_key(self) -> bool:
        """Said by Azure itself: another 404 may be of a proxy, or about the container."""
        return self.status == 404 and self.code == "BlobNotFound"

    @property
    def unmet(self) -> bool:
        """The condition of a write does not hold. A lease is another reason for 412, and means nothing of the kind."""
        return self.status == 412 and self.code in _UNMET

    @property
    def exists(self) -> bool:
        """A blob that was to be created exists: Azure says it in one of two ways."""
        return self.unmet or (self.status == 409 and self.code in ("", "BlobAlreadyExists"))

    @property
    def unauthorized(self) -> bool:
        """A bearer token was refused."""
        return self.status == 401

    def error(self, what: str) -> StoreError:
        """`what`: where and what was tried."""
        first = self.message.strip().partition("\n")[0]
        text = f"{what}: {self.code or self.status}: {first}".rstrip(": .")
        if self.status in _TRY_AGAIN or (self.status >= 500 and self.status != 501):
            unavailable = StoreUnavailable(text)
            unavailable.throttled = self.status in _TOO_MANY
            return unavailable
        if self.code == "AuthenticationFailed" and "not valid in the specified time frame" in self.message:
            return CredentialsExpired(f"{text}; the signature has expired, or is not valid yet: renew az_sas_token")
        kind = CredentialsExpired if self.unauthorized else StoreRefused
        return kind(f"{text}; {_ADVICE[self.code]}" if self.code in _ADVICE else text)

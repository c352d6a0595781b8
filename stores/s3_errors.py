"""The refusals and failures of an S3 client as errors of ours, with the remedy."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from botocore import exceptions as aws

from actorproc.errors import CredentialsExpired, StoreError, StoreRefused, StoreUnavailable

_TRY_AGAIN = {307, 408, 409, 425, 429}  # and all of 5xx
_TRY_AGAIN_CODES = {"SlowDown", "RequestTimeout", "RequestTimeoutException", "Throttling", "ThrottlingException"}
_TOO_MANY, _TOO_MANY_CODES = {429, 503}, {"SlowDown", "Throttling", "ThrottlingException"}  # S3 says it with a 503
_KEYS = "s3_access_key and s3_secret_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the AWS profile"
_REGION = "set s3_region to the region of the bucket"
_ADVICE = {
    "NoSuchBucket": "create the bucket, or correct its name in the URL",
    "InvalidBucketName": "correct the bucket's name in the URL",
    "InvalidAccessKeyId": f"the access key is unknown there; check {_KEYS}",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key; check {_KEYS}",
    "ExpiredToken": f"the credentials have expired; renew {_KEYS}",
    "AccessDenied": "these credentials need s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and "
    "s3:DeleteObject on its objects",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "NotImplemented": "this service lacks what is needed; use one with conditional writes",
}


class Answer(NamedTuple):
    """An error that a service answered with. Code and message may be empty: not every answer has a body."""

    status: int
    code: str
    message: str

    @classmethod
    def of(cls, error: aws.ClientError) -> Answer:
        said = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return cls(status, str(said.get("Code", "")), str(said.get("Message", "")))

    @property
    def missing_key(self) -> bool:
        """Whether the service itself says so: a proxy's page with status 404 does not."""
        return self.status == 404 and self.code == "NoSuchKey"


def answered(what: str, answer: Answer) -> StoreError:
    """The error for an answer. `what`: where and what was tried."""
    text = f"{what}: {answer.code or answer.status}: {answer.message}".rstrip(": .")
    again = answer.status in _TRY_AGAIN or answer.code in _TRY_AGAIN_CODES
    if again or (answer.status >= 500 and answer.code != "NotImplemented"):
        unavailable = StoreUnavailable(text)
        unavailable.throttled = answer.status in _TOO_MANY or answer.code in _TOO_MANY_CODES
        return unavailable
    code = "AccessDenied" if answer.status == 403 and answer.code not in _ADVICE else answer.code
    kind = CredentialsExpired if code == "ExpiredToken" else StoreRefused
    return kind(f"{text}; {_ADVICE[code]}" if code in _ADVICE else text)


def unanswered(what: str, endpoint: str, error: Exception) -> StoreError:
    """The error for a request that got no answer, or none that can be read."""
    cause = getattr(error, "kwargs", {}).get("error") or error  # botocore keeps the cause of its own error there
    match error:
        case _ if isinstance(cause, StoreError):
            return cause
        case aws.NoCredentialsError() | aws.PartialCredentialsError():
            return StoreRefused(f"{what}: no credentials found; set {_KEYS}")
        case aws.SSLError():
            kind = StoreRefused if _is_distrusted(cause) else StoreUnavailable  # one alert may be a server's restart
            return kind(f"{what}: no TLS with {endpoint}: {cause}; check s3_endpoint")
        case aws.EndpointConnectionError() | aws.ConnectTimeoutError() | aws.ProxyConnectionError():
            return StoreUnavailable(f"{what}: cannot reach {endpoint}: {cause}; check s3_endpoint and the network")
        case aws.ConnectionError() | aws.HTTPClientError() | aws.IncompleteReadError() | aws.CredentialRetrievalError():
            return StoreUnavailable(f"{what}: no whole answer from {endpoint}: {cause}")
        case aws.BotoCoreError():
            return StoreRefused(f"{what}: {error}")
    return StoreUnavailable(f"{what}: no whole answer from {endpoint}: {error}")


def _is_distrusted(cause: object) -> bool:
    cause = getattr(cause, "certificate_error", cause)  # aiohttp's own error wraps what ssl raised
    return isinstance(cause, ssl.SSLCertVerificationError)

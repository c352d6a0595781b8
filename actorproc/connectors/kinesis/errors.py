"""Classifies errors of the Kinesis client for the reader."""

from __future__ import annotations

import aiohttp
from botocore import exceptions as aws
from botocore.parsers import ResponseParserError
from msgspec import DecodeError

from actorproc.errors import SourceError

CLIENT_ERRORS = (aws.ClientError, aws.BotoCoreError, ResponseParserError, DecodeError, aiohttp.ClientError, OSError)
"""Raised by the client, or for an answer that is cut off."""

EXPIRED_ITERATOR = "ExpiredIteratorException"
NOT_FOUND = "ResourceNotFoundException"
INVALID = "InvalidArgumentException"
_VALIDATION = "ValidationException"
_THROTTLED = frozenset((
    "ProvisionedThroughputExceededException", "LimitExceededException", "KMSThrottlingException", "ThrottlingException",
    "Throttling", "RequestLimitExceeded",
))  # fmt: skip
_RIGHTS = "kinesis:DescribeStreamSummary, ListShards, GetShardIterator and GetRecords (PutRecords for a replay)"
_KEYS = "the source options access_key and secret_key or profile, or AWS's environment"
_KMS = "the key that encrypts the stream"
_FINAL = {
    NOT_FOUND: "there is no such stream in this region and account",
    INVALID: "the request was refused",
    _VALIDATION: "the request was refused",
    "AccessDeniedException": f"these credentials need {_RIGHTS} on the stream",
    "AccessDenied": "the role cannot be assumed",
    "UnrecognizedClientException": f"the access key is unknown there; check {_KEYS}, and the region",
    "InvalidClientTokenId": f"the access key is unknown there; check {_KEYS}",
    "InvalidSignatureException": f"the secret key does not belong to the access key; check {_KEYS}",
    "MissingAuthenticationTokenException": f"the request has no credentials; check {_KEYS}",
    "ExpiredTokenException": f"the credentials have expired; renew {_KEYS}",
    "KMSAccessDeniedException": f"these credentials need kms:Decrypt on {_KMS}",
    "KMSDisabledException": f"{_KMS} is disabled",
    "KMSInvalidStateException": f"{_KMS} cannot be used in its state",
    "KMSNotFoundException": f"{_KMS} is gone",
    "KMSOptInRequired": f"the account of {_KMS} has no subscription to KMS",
}
"""By the service's code: the service would refuse another request, too.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html#API_GetRecords_Errors
"""


def code_of(error: BaseException | None) -> str:
    """The service's code; empty if it did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, aws.ClientError) else ""


def is_unfit(error: SourceError) -> bool:
    """Whether the service refuses the content of a request."""
    return code_of(error.__cause__) in (INVALID, _VALIDATION)


def is_throttled(error: Exception) -> bool:
    return code_of(error) in _THROTTLED


def final_error(what: str, error: Exception) -> SourceError | None:
    """The error that ends the reading; None if trying again may help.

    Args:
        what: is read, for the message.
    """
    if (code := code_of(error)) in _FINAL:
        return SourceError(f"{what}: {_FINAL[code]}. The service says: {first_line(error)}")
    if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError):
        return SourceError(f"{what}: no credentials found; set {_KEYS}")
    if isinstance(error, aws.SSOError | aws.TokenRetrievalError | aws.ProfileNotFound | aws.InvalidConfigError):
        return SourceError(f"{what}: no credentials: {first_line(error)}")
    return None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

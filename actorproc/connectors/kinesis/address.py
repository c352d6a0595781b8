"""The stream that a URL names, the options of its client, and clients for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError
from pydantic import BaseModel, ConfigDict, Field, model_validator

from actorproc.config.options import parse_options
from actorproc.errors import UsageError

FORM = "kinesis://REGION/STREAM"
_CONNECTIONS = 100
_CONNECT_TIMEOUT = 5.0  # seconds


class KinesisOptions(BaseModel):
    """Options of the source, by name in `source_options`.

    Attributes:
        access_key, secret_key, session_token: of the account of the stream, which need not be that of the bucket. None:
            from `profile`, or where AWS's clients look.
        profile: in AWS's configuration files; one with `role_arn` assumes that role.
        endpoint: instead of AWS's, for an emulator or a VPC endpoint. AWS_ENDPOINT_URL_KINESIS has the same effect.
        reads_per_second: of a shard. AWS allows five to all readers of the shard together.
        max_records: of a read; a read has at most 10 MB anyway.
        explicit_hash_keys: whether producers choose shards by ExplicitHashKey, so that a record's key says nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    access_key: str | None = Field(None, repr=False)
    secret_key: str | None = Field(None, repr=False)
    session_token: str | None = Field(None, repr=False)
    profile: str | None = None
    endpoint: str | None = None
    reads_per_second: float = Field(5.0, gt=0, le=1_000)
    max_records: int = Field(10_000, ge=1, le=10_000)
    explicit_hash_keys: bool = False

    @model_validator(mode="after")
    def _whole(self) -> KinesisOptions:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key: give both, or neither")
        return self


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """A stream of a region.

    Attributes:
        given: options as they were given; a value `@PATH` stands for the content of a file.
    """

    url: str
    region: str
    stream: str
    given: Mapping[str, Any]

    @classmethod
    def of(cls, url: str, given: Mapping[str, Any]) -> StreamAddress:
        """Raises UsageError: the URL is not of its form, or an option is wrong."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise UsageError(f"source {parts.scheme}://...@...: no credentials in a URL; set the options access_key "
                             "and secret_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")  # fmt: skip
        stream = parts.path.strip("/")
        if parts.scheme != "kinesis" or not parts.netloc or not stream or "/" in stream or parts.query:
            raise UsageError(f"source {url!r}: write {FORM}")
        address = cls(url, parts.netloc, stream, given)
        address.options()
        return address

    def options(self) -> KinesisOptions:
        """The options as they are now. Raises UsageError as `parse_options`."""
        return parse_options(self.url, KinesisOptions, self.given)

    def client(
        self, options: KinesisOptions, timeout: float, service: str = "kinesis"
    ) -> AbstractAsyncContextManager[Any]:
        """A client that sends each request once.

        Args:
            timeout: of a request, in seconds.
            service: of AWS; `endpoint` is that of Kinesis.

        Raises:
            UsageError: the profile or the endpoint is wrong.
        """
        try:
            client: AbstractAsyncContextManager[Any] = AioSession(profile=options.profile).create_client(
                service,
                region_name=self.region,
                endpoint_url=options.endpoint if service == "kinesis" else None,
                aws_access_key_id=options.access_key,
                aws_secret_access_key=options.secret_key,
                aws_session_token=options.session_token,
                config=AioConfig(
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    connect_timeout=min(_CONNECT_TIMEOUT, timeout),
                    read_timeout=timeout,
                    max_pool_connections=_CONNECTIONS,
                    warm_up_loader_caches=True,  # reads its models in a thread
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise UsageError(f"source {self.url}: {error}") from None
        return client

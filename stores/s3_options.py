"""The settings of S3 stores, and how Spark reaches a bucket."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from actorproc.config.validation import has_credentials
from actorproc.storage.backend import Hadoop

_AWS_SDK = "2.35.4"
_AWS_SDK_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client")  # 19 MB; the SDK's bundle has 686 MB


def _without_credentials(url: str | None) -> str | None:
    if url is not None and has_credentials(url):
        raise ValueError("must not contain credentials: set s3_access_key and s3_secret_key, or the AWS variables")
    return url


class S3Options(BaseModel):
    """Settings of S3 stores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    s3_endpoint: Annotated[str | None, AfterValidator(_without_credentials)] = Field(
        None, description="URL of an S3 server other than AWS, such as a MinIO."
    )
    s3_region: str | None = Field(None, description="Region. Default: of the AWS profile, else us-east-1.")
    s3_access_key: str | None = Field(None, description="Access key. Default: from the usual AWS chain.")
    s3_secret_key: str | None = Field(None, description="Belongs to `s3_access_key`.", repr=False)
    s3_path_style: bool | None = Field(
        None, description="Bucket in the path instead of the host name. Default: true with `s3_endpoint`."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("s3_access_key and s3_secret_key come together or not at all")
        return self


def hadoop_of(url: str, options: S3Options) -> Hadoop:
    """How Spark reaches the bucket: as `s3a://`, with endpoint, keys and path style as far as they are set."""
    path_style = options.s3_endpoint is not None if options.s3_path_style is None else options.s3_path_style
    given = {
        "fs.s3a.endpoint": options.s3_endpoint,
        "fs.s3a.endpoint.region": options.s3_region,
        "fs.s3a.access.key": options.s3_access_key,
        "fs.s3a.secret.key": options.s3_secret_key,
        "fs.s3a.path.style.access": "true" if path_style else None,
    }
    return Hadoop(
        url.replace("s3://", "s3a://", 1),
        {name: value for name, value in given.items() if value is not None},
        "org.apache.hadoop.fs.s3a.S3AFileSystem",
        [
            "org.apache.hadoop:hadoop-aws:{hadoop}",
            *(f"software.amazon.awssdk:{part}:{_AWS_SDK}" for part in _AWS_SDK_PARTS),
        ],
        ["software.amazon.awssdk:bundle"],
    )

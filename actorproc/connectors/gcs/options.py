"""The settings of stores in Google Cloud Storage, and how Spark reaches a bucket."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from actorproc.connectors.shared.endpoints import checked_endpoint
from actorproc.storage.backend import Hadoop

SERVICE = "https://storage.googleapis.com"


def parsed_key(text: str) -> dict[str, Any]:
    """The content of a service account's key file. Raises ValueError: it is none. Does not show it."""
    try:
        key = json.loads(text)
    except ValueError:
        key = None
    if not isinstance(key, dict) or key.get("type") != "service_account":
        raise ValueError("is not the content of a service account's key file: write @PATH for a file")
    return key


def _checked_key(text: str | None) -> str | None:
    if text is not None:
        parsed_key(text)
    return text


class CloudStorageOptions(BaseModel):
    """Settings of stores in Google Cloud Storage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gs_service_account_key: Annotated[str | None, AfterValidator(_checked_key)] = Field(
        None,
        description="Content of a service account's key file, usually `@PATH`. Default: application default "
        "credentials (`GOOGLE_APPLICATION_CREDENTIALS`, workload identity, `gcloud auth application-default login`).",
        repr=False,
    )
    gs_anonymous: bool = Field(False, description="Send no credentials, as to an emulator.")
    gs_endpoint: Annotated[str | None, AfterValidator(checked_endpoint)] = Field(
        None, description=f"URL of the service, if it is not `{SERVICE}`: a private endpoint or an emulator."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.gs_service_account_key is not None and self.gs_anonymous:
            raise ValueError("gs_anonymous does not go with gs_service_account_key")
        return self


def hadoop_of(url: str, options: CloudStorageOptions) -> Hadoop | None:
    """How Spark reaches the bucket: as `gs://`, with the connector that belongs to Hadoop.

    It knows no other endpoint, and fails without credentials: then None. A key is not handed over, because it takes
    keys from files only: Spark logs in with the default credentials of its machine, or as its own configuration says.
    """
    if options.gs_endpoint is not None or options.gs_anonymous:
        return None
    given = {
        "fs.gs.impl": "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
        "fs.AbstractFileSystem.gs.impl": "org.apache.hadoop.fs.gs.Gs",
    }
    return Hadoop(
        url, given, "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem", ["org.apache.hadoop:hadoop-gcp:{hadoop}"]
    )

"""The settings of stores in Azure Blob Storage, and how Spark reaches a container."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from actorproc.connectors.azure_blob.address import Address
from actorproc.connectors.azure_blob.shared_key import decoded_key
from actorproc.connectors.shared.endpoints import checked_endpoint
from actorproc.storage.backend import Hadoop


def _checked_key(key: str | None) -> str | None:
    if key is not None:
        decoded_key(key)
    return key


def _checked_sas(sas: str | None) -> str | None:
    if sas is not None and not sas:
        raise ValueError("is empty")
    return None if sas is None else sas.removeprefix("?")


class AzureBlobOptions(BaseModel):
    """Settings of stores in Azure Blob Storage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    az_account_key: Annotated[str | None, AfterValidator(_checked_key)] = Field(
        None, description="Key of the storage account. Default: login by Microsoft Entra.", repr=False
    )
    az_sas_token: Annotated[str | None, AfterValidator(_checked_sas)] = Field(
        None, description="Shared access signature of the container or account, in place of a key.", repr=False
    )
    az_endpoint: Annotated[str | None, AfterValidator(checked_endpoint)] = Field(
        None,
        description="URL of the account's blob service, if it is not `https://ACCOUNT.blob.core.windows.net`: another "
        "Azure cloud, a private endpoint, or Azurite (`http://127.0.0.1:10000/devstoreaccount1`).",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.az_account_key is not None and self.az_sas_token is not None:
            raise ValueError("give az_account_key or az_sas_token, not both")
        return self


def hadoop_of(address: Address, options: AzureBlobOptions) -> Hadoop | None:
    """How Spark reaches the container: as `abfss://`. None: at that endpoint it does not (Azurite).

    Without a key or signature, Spark's own configuration says how it logs in.
    """
    blob = urlsplit(options.az_endpoint or address.service).hostname or ""
    if not blob.startswith(f"{address.account}.blob."):
        return None
    host = blob.replace(".blob.", ".dfs.", 1)
    given: dict[str, str] = {}
    if options.az_account_key is not None:
        given = {
            f"fs.azure.account.auth.type.{host}": "SharedKey",
            f"fs.azure.account.key.{host}": options.az_account_key,
        }
    elif options.az_sas_token is not None:
        given = {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": options.az_sas_token,
        }
    return Hadoop(
        f"abfss://{address.container}@{host}/{address.prefix}".rstrip("/"),
        given,
        "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
        ["org.apache.hadoop:hadoop-azure:{hadoop}"],
    )

"""What pyarrow's clients in clouds.py do not offer, with the same credentials, endpoints and time-outs:
conditional writes to S3 (ETags, by botocore), Google Cloud Storage (generations, JSON API) and Azure Blob
(ETags, REST), and the folders of Google Cloud Storage.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from trainfleet.training.stores.clouds import azure_settings, emulator_url, s3_settings
from trainfleet.training.stores.conditional import (
    ConditionalFiles,
    ConflictError,
    UnsupportedConditionsError,
)
from trainfleet.training.stores.retry import RetryPolicy
from trainfleet.training.stores.urls import StorageUrl

_S3_CONFLICTS = ("PreconditionFailed", "NoSuchKey", "404", "412")
"""The last three: a write or delete on the ETag of a file that is gone, and answers without a body."""
_S3_UNSUPPORTED = ("NotImplemented", "501")
_AZURE_VERSION = "2021-12-02"
_AZURE_SCOPE = "https://storage.azure.com/.default"
_GCS_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_SIGNED_HEADERS = (
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


class S3Files:
    """S3 and stores with its interface. A version is an ETag."""

    certain = False

    def __init__(self, url: StorageUrl, retry: RetryPolicy) -> None:
        try:
            import botocore.config
            import botocore.session
        except ImportError as error:
            raise _missing("botocore") from error
        settings = s3_settings(retry)
        endpoint = settings.get("endpoint_override")
        region = settings["region"]
        if region is None:
            from pyarrow.fs import resolve_s3_region

            region = resolve_s3_region(url.bucket)
        self._url = url
        self._client = botocore.session.get_session().create_client(
            "s3",
            region_name=region,
            endpoint_url=f"{settings['scheme']}://{endpoint}" if endpoint else None,
            verify=settings["tls_ca_file_path"],
            config=botocore.config.Config(
                connect_timeout=settings["connect_timeout"],
                read_timeout=settings["request_timeout"],
                retries={"total_max_attempts": 1},
                # Stores with S3's interface may know neither virtual hosts nor the newer checksums.
                s3={"addressing_style": "path"} if endpoint else None,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def get(self, path: str) -> tuple[bytes, str] | None:
        try:
            answer = self._call("get_object", path)
        except ConflictError:
            return None
        return answer["Body"].read(), answer["ETag"]

    def put(self, path: str, data: bytes, version: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        etag: str = self._call("put_object", path, Body=data, **condition)["ETag"]
        return etag

    def delete(self, path: str, version: str) -> None:
        # NOTE: a store that does not know this condition deletes the file.
        try:
            self._call("delete_object", path, IfMatch=version)
        except ConflictError:
            if self.get(path) is not None:
                raise

    def _call(self, method: str, path: str, **settings: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return getattr(self._client, method)(
                Bucket=self._url.bucket, Key=_key(self._url, path), **settings
            )
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in _S3_CONFLICTS:
                raise _conflict(path) from error
            if code in _S3_UNSUPPORTED:
                raise UnsupportedConditionsError("the store offers no conditional writes") from error
            raise


class GcsFiles:
    """Google Cloud Storage. A version is an object's generation."""

    certain = True

    def __init__(self, url: StorageUrl, retry: RetryPolicy) -> None:
        try:
            import google.auth
            import requests
            from google.auth.transport.requests import AuthorizedSession
        except ImportError as error:
            raise _missing("google-auth") from error
        self._url, self._limit_s = url, retry.stall_s
        emulator = emulator_url()
        self._address = emulator or "https://storage.googleapis.com"
        if emulator:
            self._session: requests.Session = requests.Session()
        else:
            credentials = google.auth.default(scopes=[_GCS_SCOPE])[0]
            self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call] # has no types

    def get(self, path: str) -> tuple[bytes, str] | None:
        answer = self._request("GET", self._object(path), alt="media")
        if answer.status_code == 404:
            _require_bucket(answer)
            return None
        return answer.content, answer.headers["X-Goog-Generation"]

    def put(self, path: str, data: bytes, version: str | None) -> str:
        answer = self._request(
            "POST",
            f"/upload/storage/v1/b/{self._url.bucket}/o",
            data,
            uploadType="media",
            name=_key(self._url, path),
            ifGenerationMatch=version or "0",
        )
        if answer.status_code in (404, 412):
            _require_bucket(answer)
            raise _conflict(path)
        return str(answer.json()["generation"])

    def delete(self, path: str, version: str) -> None:
        answer = self._request("DELETE", self._object(path), ifGenerationMatch=version)
        if answer.status_code == 412:
            raise _conflict(path)

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly below one."""
        below = f"{_key(self._url, prefix).rstrip('/')}/".lstrip("/")
        found: list[str] = []
        query = {"prefix": below, "delimiter": "/", "fields": "prefixes,nextPageToken"}
        while True:
            answer = self._request("GET", f"/storage/v1/b/{self._url.bucket}/o", None, **query)
            _require_bucket(answer)
            page = answer.json()
            found += [each.removeprefix(below).rstrip("/") for each in page.get("prefixes", [])]
            if "nextPageToken" not in page:
                return found
            query["pageToken"] = page["nextPageToken"]

    def _object(self, path: str) -> str:
        return f"/storage/v1/b/{self._url.bucket}/o/{quote(_key(self._url, path), safe='')}"

    def _request(self, method: str, path: str, data: bytes | None = None, **query: str) -> Any:
        answer = self._session.request(
            method, self._address + path, params=query, data=data, timeout=self._limit_s, verify=_trusted()
        )
        return _checked(answer)


class AzureFiles:
    """Azure Blob. A version is an ETag. Signed with the account's key, a SAS token or an Entra ID token."""

    certain = True

    def __init__(self, url: StorageUrl, retry: RetryPolicy) -> None:
        self._url, self._limit_s = url, retry.stall_s
        self._settings = azure_settings(url)
        account = self._settings["account_name"]
        scheme = self._settings.get("blob_storage_scheme", "https")
        host = self._settings.get("blob_storage_authority", ".blob.core.windows.net")
        self._address = (
            f"{scheme}://{account}{host}" if host.startswith(".") else f"{scheme}://{host}/{account}"
        )
        self._credential: Any = None
        if not self._settings.keys() & {"account_key", "sas_token"}:
            try:
                from azure.identity import DefaultAzureCredential
            except ImportError as error:
                raise _missing("azure-identity") from error
            self._credential = DefaultAzureCredential()

    def get(self, path: str) -> tuple[bytes, str] | None:
        answer = self._request("GET", path)
        if answer.status_code == 404:
            _require_bucket(answer)
            return None
        return answer.content, answer.headers["ETag"]

    def put(self, path: str, data: bytes, version: str | None) -> str:
        condition = {"If-None-Match": "*"} if version is None else {"If-Match": version}
        answer = self._request("PUT", path, data, {"x-ms-blob-type": "BlockBlob", **condition})
        if answer.status_code in (404, 409, 412):
            _require_bucket(answer)
            raise _conflict(path)
        return str(answer.headers["ETag"])

    def delete(self, path: str, version: str) -> None:
        answer = self._request("DELETE", path, headers={"If-Match": version})
        if answer.status_code == 412 and self.get(path) is not None:
            raise _conflict(path)

    def _request(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Any:
        import requests

        address = f"{self._address}/{self._url.bucket}/{quote(_key(self._url, path))}"
        sent = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _AZURE_VERSION, **(headers or {})}
        if self._credential is not None:
            sent["Authorization"] = f"Bearer {self._credential.get_token(_AZURE_SCOPE).token}"
        elif token := self._settings.get("sas_token"):
            address += f"?{token.lstrip('?')}"
        else:
            sent["Authorization"] = self._signature(method, address, sent, len(data))
        answer = requests.request(
            method, address, data=data, headers=sent, timeout=self._limit_s, verify=_trusted()
        )
        return _checked(answer)

    def _signature(self, method: str, address: str, headers: Mapping[str, str], length: int) -> str:
        """The header of Azure's Shared Key scheme (REST reference, "Authorize with Shared Key")."""
        account = self._settings["account_name"]
        parts = urlsplit(address)
        own = sorted((name.lower(), value) for name, value in headers.items() if name.startswith("x-ms-"))
        lines = [method, "", "", str(length or "")]
        lines += [headers.get(name, "") for name in _SIGNED_HEADERS]
        lines += [f"{name}:{value}" for name, value in own]
        lines += [f"/{account}{parts.path}"]
        lines += [f"{name.lower()}:{value}" for name, value in sorted(parse_qsl(parts.query))]
        key = base64.b64decode(self._settings["account_key"])
        digest = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
        return f"SharedKey {account}:{base64.b64encode(digest).decode()}"


CLIENTS: dict[str, Callable[[StorageUrl, RetryPolicy], ConditionalFiles]] = {
    "s3": S3Files,
    "gs": GcsFiles,
    "az": AzureFiles,
}
"""By kind of store: makes the client of conditional requests, at the first one."""


def gcs_folders(client: ConditionalFiles, prefix: str) -> list[str]:
    """The folders directly below one in Google Cloud Storage.

    NOTE: pyarrow lists a folder only if it has an object of its own (gcsfs.cc, GetFileInfo: it reads the
    objects of a listing, not the prefixes).
    """
    assert isinstance(client, GcsFiles)
    return client.folders(prefix)


def _key(url: StorageUrl, path: str) -> str:
    return f"{url.path}/{path}".lstrip("/")


def _trusted() -> str | bool:
    """The CAs that pyarrow's clients of GCS and Azure trust: those of SSL_CERT_FILE, else the system's."""
    return os.environ.get("SSL_CERT_FILE") or True


def _conflict(path: str) -> ConflictError:
    return ConflictError(f"{path} was changed by another process")


def _missing(package: str) -> UnsupportedConditionsError:
    return UnsupportedConditionsError(f"conditional writes need the package {package}")


def _checked(answer: Any) -> Any:
    """An answer whose status is a success, or one that tells of the file: it is missing or another one."""
    if answer.status_code >= 400 and answer.status_code not in (404, 409, 412):
        raise OSError(f"HTTP status {answer.status_code}: {answer.text[:500]}")
    return answer


def _require_bucket(answer: Any) -> None:
    """Fail if an answer is about the bucket or container, or about a conflict of another kind."""
    text = answer.text[:500]
    if answer.status_code == 404 and ("bucket does not exist" in text or "ContainerNotFound" in text):
        raise OSError(f"HTTP status 404: {text}")
    if answer.status_code == 409 and "BlobAlreadyExists" not in text:
        raise OSError(f"HTTP status 409: {text}")

"""S3, Google Cloud Storage and Azure Blob through pyarrow, with each cloud's default credentials.

Environment: TRAINFLEET_S3_ENDPOINT or AWS_ENDPOINT_URL, AWS_REGION, AWS_CA_BUNDLE; STORAGE_EMULATOR_HOST;
AZURE_STORAGE_ACCOUNT_NAME, _KEY, _SAS_TOKEN, _CONNECTION_STRING, TRAINFLEET_AZURE_ENDPOINT.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from trainfleet.errors import InputError, Problem
from trainfleet.training.stores.conditional import ConditionalFiles
from trainfleet.training.stores.entry import Entry
from trainfleet.training.stores.retry import RetryPolicy
from trainfleet.training.stores.urls import StorageUrl

_PART_BYTES = 1 << 22
S3_ATTEMPTS = 4
"""Attempts of pyarrow for each request, such as a part of an upload, with waits of up to 1, 2 and 4 s (AWS
SDK for C++, StandardRetryStrategy). After them, the store's retry begins the whole file again. More would
keep a call that has stalled, and that the store has given up, alive for longer: it may still write what is
outdated.
"""


_IN_FLIGHT_S = 3.0
"""How long Python's exit waits for requests of a stream that has just failed: Azure's client ends the process
with SIGABRT if it sends another one meanwhile.
"""
_aborted: deque[float] = deque(maxlen=1)


class CloudOutput:
    """A stream into an object, in pieces small enough to observe progress."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _PART_BYTES):
            self._stream.write(view[start : start + _PART_BYTES])

    def close(self) -> None:
        self._stream.close()

    def abort(self) -> None:
        # NOTE: closing or destroying a failed stream would complete the upload of a partial file. A list
        # would keep it only until Python exits; this reference is never given back.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._stream))
        _aborted.append(time.monotonic())


class CloudBackend:
    """Object store `Backend`. Creates the client at the first call, so that retries cover it too."""

    local = False

    def __init__(
        self,
        make: Callable[[], Any],
        root: str,
        make_conditional: Callable[[], ConditionalFiles],
        folders: Callable[[ConditionalFiles, str], list[str]] | None = None,
    ) -> None:
        """`folders` lists those below a folder where pyarrow's client does not."""
        self._make, self.root, self._folders = make, root, folders
        self._client: Any = None
        self._make_conditional = make_conditional
        self._conditional: ConditionalFiles | None = None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self._make()
            _CONNECTED.add(self)
            _release_at_exit()
        return self._client

    def release(self) -> None:
        """Forget the client; the next call makes another one."""
        self._client = None

    def create(self, path: str) -> CloudOutput:
        # NOTE: by default pyarrow compresses files whose names end in .gz, .bz2 or .zst once more.
        return CloudOutput(self.client.open_output_stream(self._at(path), compression=None))

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        if length is None:
            return b"".join(self.chunks(path))[offset:]
        with self.client.open_input_file(self._at(path)) as file:
            data: bytes = file.read_at(length, offset)
            return data

    def chunks(self, path: str) -> Iterator[bytes]:
        # a stream: Google's client holds the GIL while it reads a file at an offset
        with self.client.open_input_stream(self._at(path), compression=None, buffer_size=0) as stream:
            while data := stream.read(_PART_BYTES):
                yield data

    def sizes(self, prefix: str) -> dict[str, int]:
        from pyarrow.fs import FileSelector, FileType

        infos = self.client.get_file_info(
            FileSelector(self._at(prefix), recursive=True, allow_not_found=True)
        )
        return {
            info.path.removeprefix(self.root).strip("/"): info.size
            for info in infos
            if info.type == FileType.File
        }

    def entries(self, prefix: str) -> list[Entry]:
        from pyarrow.fs import FileSelector, FileType

        infos = self.client.get_file_info(FileSelector(self._at(prefix), allow_not_found=True))
        found = [
            Entry(
                info.base_name,
                info.type == FileType.Directory,
                info.size or 0,
                None if info.mtime_ns is None else info.mtime_ns / 1e9,
            )
            for info in infos
        ]
        if self._folders is not None:
            known = {each.name for each in found}
            more = self._folders(self.conditional, prefix)
            found += [Entry(name, folder=True) for name in more if name not in known]
        return found

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.client.delete_file(self._at(path))

    def remove_folder(self, prefix: str) -> None:
        # pyarrow deletes up to 1,000 files of S3 and 256 of Azure per request, those of GCS in parallel, and
        # the objects in place of empty folders (cpp/src/arrow/filesystem: s3fs.cc, azurefs.cc, gcsfs.cc).
        from pyarrow.fs import FileType

        if self.client.get_file_info(self._at(prefix)).type == FileType.NotFound:
            return  # which each cloud's client reports in another way
        with contextlib.suppress(FileNotFoundError):
            self.client.delete_dir(self._at(prefix))

    def prune(self) -> None:
        """No-op: an object store has no folders."""

    @property
    def conditional(self) -> ConditionalFiles:
        if self._conditional is None:
            self._conditional = self._make_conditional()
        return self._conditional

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/")


def connect(url: StorageUrl, retry: RetryPolicy) -> CloudBackend:
    """The backend of an object store.

    Raises:
        InputError: Azure without an account.
    """
    from trainfleet.training.stores.conditional_clouds import CLIENTS, gcs_folders

    root = f"{url.bucket}/{url.path}".rstrip("/")
    folders = gcs_folders if url.kind == "gs" else None
    return CloudBackend(MAKERS[url.kind](url, retry), root, lambda: CLIENTS[url.kind](url, retry), folders)


_CONNECTED: weakref.WeakSet[CloudBackend] = weakref.WeakSet()


@functools.cache
def _release_at_exit() -> None:
    """Wait for requests in flight, and release the clients before pyarrow ends the AWS SDK when Python exits.

    NOTE: with a web identity (AWS_WEB_IDENTITY_TOKEN_FILE), it waits forever for a client
    (apache/arrow#50188). Failed streams are kept, so a process that has one still waits.
    """
    import pyarrow.fs  # noqa: F401 - its handler is registered first, and runs last

    def release() -> None:
        if _aborted:
            time.sleep(max(0.0, _aborted[0] + _IN_FLIGHT_S - time.monotonic()))
        for backend in list(_CONNECTED):
            backend.release()

    atexit.register(release)


def s3_settings(retry: RetryPolicy) -> dict[str, Any]:
    """Time-outs in s, region, CA file and endpoint of S3, from the environment."""
    env = os.environ
    endpoint = (
        env.get("TRAINFLEET_S3_ENDPOINT") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    )
    settings: dict[str, Any] = {
        "request_timeout": retry.stall_s,
        "connect_timeout": min(10.0, retry.stall_s),
        "region": env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION"),
        "tls_ca_file_path": env.get("AWS_CA_BUNDLE") or env.get("SSL_CERT_FILE"),
    }
    if endpoint:
        settings |= _endpoint(endpoint)
        settings["region"] = settings["region"] or "us-east-1"
    return settings


def _s3(url: StorageUrl, retry: RetryPolicy) -> Callable[[], Any]:
    settings = s3_settings(retry)

    def make() -> Any:
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

        if settings["region"] is None:
            settings["region"] = resolve_s3_region(url.bucket)
        return S3FileSystem(
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=S3_ATTEMPTS),
            **{name: value for name, value in settings.items() if value},
        )

    return make


def emulator_url() -> str:
    """The address of a server in place of Google Cloud Storage; empty for Google's."""
    address = os.environ.get("STORAGE_EMULATOR_HOST", "")
    return address if "://" in address or not address else f"http://{address}"


def _gcs(_: StorageUrl, retry: RetryPolicy) -> Callable[[], Any]:
    emulator = emulator_url()

    def make() -> Any:
        from pyarrow.fs import GcsFileSystem

        settings = {**_endpoint(emulator), "anonymous": True} if emulator else {}
        return GcsFileSystem(
            retry_time_limit=timedelta(seconds=max(1, min(5, int(retry.stall_s / 10)))), **settings
        )

    return make


def azure_settings(url: StorageUrl) -> dict[str, Any]:
    """Account, key or SAS token, and addresses of Azure Blob, from the URL and the environment.

    Raises:
        InputError: the account is unknown.
    """
    env = os.environ
    connection = dict(
        part.split("=", 1)
        for part in env.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        if "=" in part
    )
    account = (
        url.account
        or env.get("AZURE_STORAGE_ACCOUNT_NAME")
        or env.get("AZURE_STORAGE_ACCOUNT")
        or connection.get("AccountName")
    )
    if not account:
        fix = "use az://CONTAINER@ACCOUNT.blob.core.windows.net/path, or set AZURE_STORAGE_ACCOUNT_NAME"
        raise InputError(
            "the storage account is unknown",
            [Problem("storage", f"az://{url.bucket} names a container without an account", fix)],
        )
    key = env.get("AZURE_STORAGE_ACCOUNT_KEY") or env.get("AZURE_STORAGE_KEY") or connection.get("AccountKey")
    settings: dict[str, Any] = {"account_name": account}
    if key:
        settings["account_key"] = key
    elif env.get("AZURE_STORAGE_SAS_TOKEN"):
        settings["sas_token"] = env["AZURE_STORAGE_SAS_TOKEN"]
    endpoint = env.get("TRAINFLEET_AZURE_ENDPOINT") or (
        connection.get("BlobEndpoint") if not url.account else None
    )
    if endpoint:
        parts = _endpoint(endpoint)
        for service in ("blob", "dfs"):
            settings |= {
                f"{service}_storage_authority": parts["endpoint_override"],
                f"{service}_storage_scheme": parts["scheme"],
            }
    elif url.host and not url.host.endswith("core.windows.net"):
        cloud = url.host.partition(".")[2]  # sovereign: core.chinacloudapi.cn, core.usgovcloudapi.net
        settings |= {"blob_storage_authority": f".blob.{cloud}", "dfs_storage_authority": f".dfs.{cloud}"}
    return settings


def _azure(url: StorageUrl, _: RetryPolicy) -> Callable[[], Any]:
    settings = azure_settings(url)

    def make() -> Any:
        from pyarrow.fs import AzureFileSystem

        return AzureFileSystem(**settings)

    return make


def _endpoint(url: str) -> dict[str, str]:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return {"scheme": parts.scheme, "endpoint_override": parts.netloc}


MAKERS: dict[str, Callable[[StorageUrl, RetryPolicy], Callable[[], Any]]] = {
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
}
"""By kind of store: a function whose result makes the pyarrow filesystem at the first call."""

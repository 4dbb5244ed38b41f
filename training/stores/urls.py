"""Parses storage URLs: scheme, bucket or container, account, path. Needs neither network nor pyarrow.

Azure has two forms: CONTAINER@ACCOUNT-HOST, or the container alone with the account from the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean

SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az", "file": "file"}
BUCKET = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}"),
}
NAMES = {"s3": "bucket", "gs": "bucket", "az": "container"}
HOSTS = (".blob.core.", ".dfs.core.")


@dataclass(frozen=True)
class StorageUrl:
    """A parsed storage URL.

    Attributes:
        kind: `file`, `s3`, `gs` or `az`.
        bucket: bucket or container; empty for a folder.
        path: path in the bucket without leading or trailing slashes; for a folder its path, unchanged.
        account: Azure's storage account if the URL names it.
        host: the rest of the account's host, such as `blob.core.windows.net`.
    """

    kind: str
    bucket: str
    path: str
    account: str = ""
    host: str = ""


def is_remote(url: str) -> bool:
    """Whether this is an object store, not a folder."""
    return "://" in url and not url.startswith("file://")


def parse(url: str, where: str = "storage") -> StorageUrl:
    """Parse a URL or folder.

    Raises:
        InputError: unknown scheme or invalid bucket; `where` names the setting that holds the URL.
    """
    if "://" not in url:
        return StorageUrl("file", "", url)
    scheme, _, rest = url.partition("://")
    kind = SCHEMES.get(scheme)
    if kind is None:
        known = ("s3", "gs", "az", "abfss", "file")
        raise InputError(
            "unknown kind of storage",
            [Problem(where, f"`{url}` begins with {scheme}://", did_you_mean(scheme, known))],
        )
    if kind == "file":
        return StorageUrl("file", "", rest)
    parts = urlsplit(f"x://{rest}")
    bucket, _, authority = parts.netloc.partition("@")
    account, _, host = authority.partition(".")
    path = parts.path.strip("/")
    if parts.query or parts.fragment:
        raise _wrong(
            where, url, "holds a ? or #", "pass keys and tokens in environment variables, never in a URL"
        )
    if not BUCKET[kind].fullmatch(bucket):
        raise _wrong(
            where,
            url,
            f"names no {NAMES[kind]}" if not bucket else f"`{bucket}` is not a valid {NAMES[kind]} name",
            f"{scheme}://NAME/path",
        )
    if authority and (kind != "az" or not any(f".{host}".startswith(each) for each in HOSTS)):
        raise _wrong(
            where,
            url,
            f"`@{authority}` is not the host of a storage account",
            f"{scheme}://CONTAINER@ACCOUNT.blob.core.windows.net/path",
        )
    return StorageUrl(kind, bucket, path, account, host)


def _wrong(where: str, url: str, what: str, fix: str) -> InputError:
    return InputError("the storage URL is not valid", [Problem(where, f"`{url}`: {what}", fix)])

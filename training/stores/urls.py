"""What a storage URL means: scheme, bucket or container, account, path. No network and no pyarrow, so recipes
can be checked.

Used by `trainfleet.training.recipe.load` and by `trainfleet.training.stores`. Easy to get wrong: Azure has
two spellings of everything; the container
may stand before an @ with the account's host after it, or alone, the account then comes from the environment.
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
class Place:
    """A storage URL taken apart.

    Attributes:
        kind: `file`, `s3`, `gs` or `az`.
        bucket: bucket or container; empty for a folder.
        path: below it, without slashes at its ends; for a folder its path as it was written.
        account: Azure's storage account where the URL names it.
        host: what stands behind `account` in such a URL, such as `blob.core.windows.net`.
    """

    kind: str
    bucket: str
    path: str
    account: str = ""
    host: str = ""


def is_remote(url: str) -> bool:
    """Whether this is an object store and no folder."""
    return "://" in url and not url.startswith("file://")


def parse(url: str, where: str = "storage") -> Place:
    """Take a URL or folder apart.

    Raises:
        InputError: an unknown scheme, or no bucket; `where` says which setting holds the URL.
    """
    if "://" not in url:
        return Place("file", "", url)
    scheme, _, rest = url.partition("://")
    kind = SCHEMES.get(scheme)
    if kind is None:
        known = ("s3", "gs", "az", "abfss", "file")
        raise InputError(
            "no such kind of storage",
            [Problem(where, f"`{url}` begins with {scheme}://", did_you_mean(scheme, known))],
        )
    if kind == "file":
        return Place("file", "", rest)
    parts = urlsplit(f"x://{rest}")
    bucket, _, authority = parts.netloc.partition("@")
    account, _, host = authority.partition(".")
    path = parts.path.strip("/")
    if parts.query or parts.fragment:
        raise _wrong(
            where, url, "holds a ? or #", "keys and tokens belong into the environment, never into a URL"
        )
    if not BUCKET[kind].fullmatch(bucket):
        raise _wrong(
            where,
            url,
            f"names no {NAMES[kind]}" if not bucket else f"`{bucket}` can be no {NAMES[kind]}'s name",
            f"{scheme}://NAME/path",
        )
    if authority and (kind != "az" or not any(f".{host}".startswith(each) for each in HOSTS)):
        raise _wrong(
            where,
            url,
            f"`@{authority}` is no storage account's host",
            f"{scheme}://CONTAINER@ACCOUNT.blob.core.windows.net/path",
        )
    return Place(kind, bucket, path, account, host)


def _wrong(where: str, url: str, what: str, fix: str) -> InputError:
    return InputError("the storage cannot be read as a URL", [Problem(where, f"`{url}`: {what}", fix)])

"""Publishes a platform's outputs (the contract) to a bucket, from which `--stack URL` reads them."""

from __future__ import annotations

from urllib.parse import parse_qs

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.platform_outputs import load_platform
from trainfleet.training.stores import is_remote, open_store

FOLDER = "contracts"
BACKENDS = ("s3://", "gs://", "azblob://", "file://")


def storage_url(backend: str) -> str:
    """Return the storage URL of a Pulumi state backend's bucket; another URL as it is.

    Pulumi passes settings after a `?`, and calls Azure's scheme `azblob`.
    """
    url, _, query = backend.partition("?")
    if not url.startswith("azblob://"):
        return url
    account = parse_qs(query).get("storage_account", [""])[0]
    container, _, path = url.removeprefix("azblob://").partition("/")
    host = f"@{account}.blob.core.windows.net" if account else ""
    return f"az://{container}{host}/{path}".rstrip("/")


def publish(stack: str, to: str) -> str:
    """Write the outputs of an applied stack below a bucket's `contracts/` and return the URL of the file.

    Only the contract is published, without other outputs of the program.

    Raises:
        InputError: the stack has no readable outputs, or the URL is not of a bucket.
        StoreError: the bucket cannot be written.
    """
    root = storage_url(to).rstrip("/")
    if not is_remote(root) and not root.startswith("/"):
        problem = Problem("--to", f"`{to}` is not a bucket", "for example s3://my-state")
        raise InputError("cannot publish there", [problem])
    outputs = load_platform(stack).outputs
    path = f"{FOLDER}/{stack}.json"
    open_store(root).put(path, (outputs.model_dump_json(indent=2) + "\n").encode())
    return f"{root}/{path}"

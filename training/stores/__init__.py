"""Storage of checkpoints and run records: a folder, S3, Google Cloud Storage or Azure Blob, addressed by URL.

NOTE: nothing here renames, because object stores cannot. Data that must be complete or absent is written
first, its marker last.
"""

from __future__ import annotations

from trainfleet.training.stores.conditional import ConflictError, UnsupportedConditionsError
from trainfleet.training.stores.entry import Entry
from trainfleet.training.stores.retry import RetryPolicy
from trainfleet.training.stores.store import (
    FileDigest,
    NotFoundError,
    Store,
    StoreError,
    StoreUnavailableError,
    open_store,
)
from trainfleet.training.stores.urls import StorageUrl, is_remote, parse

__all__ = [
    "ConflictError",
    "Entry",
    "FileDigest",
    "NotFoundError",
    "RetryPolicy",
    "StorageUrl",
    "Store",
    "StoreError",
    "StoreUnavailableError",
    "UnsupportedConditionsError",
    "is_remote",
    "open_store",
    "parse",
]

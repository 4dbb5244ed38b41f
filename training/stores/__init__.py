"""Where checkpoints and the readable side of a run are kept: a folder, S3, Google Cloud Storage or Azure
Blob, by URL.

Used by `trainfleet.training.checkpoint.checkpoints`, `trainfleet.training.runs.storage` and whoever opens a
trained model. Easy to get wrong: nothing here renames,
for object stores cannot; what must be whole or absent is written under a name that is not looked at, then its
marker last.
"""

from __future__ import annotations

from trainfleet.training.stores.retry import Patience
from trainfleet.training.stores.store import NotThereError, Store, StoreError, Written, open_store
from trainfleet.training.stores.urls import Place, is_remote, parse

__all__ = [
    "NotThereError",
    "Patience",
    "Place",
    "Store",
    "StoreError",
    "Written",
    "is_remote",
    "open_store",
    "parse",
]

"""Opens prepared data, in a folder or at a URL: its blocks, its extra files, and what run.json says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.data.blocks import MANIFEST, Manifest
from trainfleet.training.data.stream import Blocks, open_blocks, read_file, read_manifest


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, or the URL of one."""

    where: str
    manifest: Manifest

    def blocks(self, split: str, **settings: Any) -> Blocks:
        """A split's samples; `settings` are arguments of `trainfleet.training.data.stream.Blocks`."""
        return open_blocks(self.where, split, self.manifest, **settings)

    def extra(self, name: str) -> bytes:
        """One of the folder's extra files.

        Raises:
            TrainfleetError: the file is missing or has changed.
        """
        content = read_file(f"{self.where}/{name}")
        if hashlib.sha256(content).hexdigest() != self.manifest.extras[name]:
            raise TrainfleetError(
                "the prepared data is damaged",
                [Problem(f"{self.where}/{name}", "has changed since it was written", "prepare it again")],
            )
        return content

    def data_info(self) -> dict[str, Any]:
        """The `data` entry of run.json."""
        bad = self.manifest.bad
        rows = {split: self.manifest.rows(split) for split in self.manifest.splits}
        left_out = {"count": bad.get("count", 0), "named": bad.get("named", [])[:20]}
        return {
            "manifest": f"{self.where}/{MANIFEST}",
            "digest": self.manifest.digest(),
            "rows": rows,
            "left_out": left_out,
        }


def open_prepared(where: str) -> Prepared:
    """Open a prepared folder or URL.

    Raises:
        InputError: it holds no prepared data.
    """
    return Prepared(where, read_manifest(where))

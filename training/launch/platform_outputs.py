"""What a launcher takes from a platform's outputs: where runs are stored, and what to note about the place.

Used by `trainfleet.training.launch.supervise`. The only file of `training` that reads the contract between
platforms and launchers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.infra.outputs.contract import PlatformOutputs, load_outputs

__all__ = ["POOL_FACTS", "Place", "PlatformOutputs", "load_place"]

POOL_FACTS = ("name", "accelerator", "per_node", "max_nodes", "instance_type", "spot", "usd_per_hour")
"""What run.json keeps of a pool: `usd_per_hour` is a node's price in the catalogue, None where it is not
known.
"""


@dataclass(frozen=True)
class Place:
    """A platform, as read from `file`."""

    outputs: PlatformOutputs
    file: Path

    def runs_folder(self) -> str:
        """The folder or URL of the platform's runs: on the clouds the one place where training may write."""
        return self.outputs.bucket_url.removeprefix("file://").rstrip("/")

    def facts(self) -> dict[str, Any]:
        """What run.json keeps of the platform."""
        outputs = self.outputs
        return {
            "name": outputs.name,
            "cloud": outputs.cloud,
            "region": outputs.region,
            "environment": outputs.environment,
            "contract_version": outputs.contract_version,
            "trainfleet_version": outputs.trainfleet_version,
            "bucket_url": outputs.bucket_url,
            "pools": [pool.model_dump(include=set(POOL_FACTS)) for pool in outputs.pools],
        }


def load_place(file: Path) -> Place:
    """Read a platform's outputs.

    Raises:
        InputError: no such file, not outputs, or of a version that cannot be read.
    """
    return Place(load_outputs(file), file)

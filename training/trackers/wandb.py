"""Weights & Biases: one W&B run per run folder, which a resumed run continues.

Keys and addresses are wandb's own variables (WANDB_API_KEY, WANDB_BASE_URL); WANDB_MODE=offline needs no
network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.trackers import metrics_of


class WeightsAndBiases:
    """Metrics by step."""

    def __init__(self, project: str, name: str, run_dir: Path, recipe: Mapping[str, Any]) -> None:
        import wandb

        key = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:16]
        self._run: Any = wandb.init(
            project=project, name=name, id=key, resume="allow", dir=str(run_dir), config=dict(recipe)
        )

    def write_row(self, row: Mapping[str, Any]) -> None:
        self._run.log({f"{split}/{name}": value for split, name, value in metrics_of(row)}, step=row["step"])

    def close(self) -> None:
        self._run.finish()

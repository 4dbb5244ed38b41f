"""Weights & Biases: one of its runs per run folder; a resumed run goes on in the same one. WANDB_MODE=offline
needs no network.

Keys and addresses are wandb's own variables (WANDB_API_KEY, WANDB_BASE_URL).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.trackers import figures


class WeightsAndBiases:
    """Figures by step."""

    def __init__(self, project: str, name: str, run_dir: Path, recipe: Mapping[str, Any]) -> None:
        import wandb

        key = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:16]
        self._run: Any = wandb.init(
            project=project, name=name, id=key, resume="allow", dir=str(run_dir), config=dict(recipe)
        )

    def row(self, row: Mapping[str, Any]) -> None:
        self._run.log({f"{split}/{name}": value for split, name, value in figures(row)}, step=row["step"])

    def close(self) -> None:
        self._run.finish()

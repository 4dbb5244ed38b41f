"""TensorBoard event files in RUN/tensorboard. A resumed run hides the points after its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.trackers import metrics_of


class TensorBoard:
    """One point per metric of a row, named `train/loss`, `validation/loss` and so on."""

    def __init__(self, folder: Path, resumed_from: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = resumed_from + 1 if resumed_from else None
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge)

    def write_row(self, row: Mapping[str, Any]) -> None:
        for split, name, value in metrics_of(row):
            self._writer.add_scalar(f"{split}/{name}", value, row["step"])

    def close(self) -> None:
        self._writer.close()

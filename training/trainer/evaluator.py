"""Metrics of the validation and the test split, over all ranks."""

from __future__ import annotations

import torch

from trainfleet.training.data import share, spread
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.metrics import MetricsManager
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.weight_average import WeightAverage
from trainfleet.training.workloads import Split, Workload


def metrics_of(workload: Workload, split: Split, device: str) -> MetricsManager:
    """Empty metrics of a split."""
    return MetricsManager(workload.metrics, device, workload.collections(split))


SAMPLES = 10_000
"""Samples of a validation unless the recipe says how many: the standard error of an accuracy is at most half
a percent then.
"""


class Evaluator:
    """Evaluates the samples that the recipe selects of each split, with the average of the weights if there
    is one.
    """

    def __init__(
        self,
        recipe: Recipe,
        context: RunContext,
        workload: Workload,
        stepper: Stepper,
        average: WeightAverage,
    ) -> None:
        self.context, self.workload, self.stepper, self.average = context, workload, stepper, average
        self._most = recipe.batch.micro_batch
        most = recipe.validation.samples or SAMPLES
        self.samples = {split: spread(workload.size(split), most) for split in ("validation", "test")}

    def evaluate(self, split: Split, micro_batch: int) -> dict[str, float]:
        """Metrics by name, such as `validation/loss`; each sample counts once. Collective.

        Args:
            split: to evaluate.
            micro_batch: samples per forward pass in training; at most the recipe's are used.
        """
        micro_batch = min(self._most, micro_batch)
        metrics = metrics_of(self.workload, split, self.context.device)
        stepper, strategy, samples = self.stepper, self.stepper.strategy, self.samples[split]
        strategy.sync_buffers()
        model = strategy.module.eval()
        mine, most = (
            share(samples, micro_batch, rank, self.context.world_size) for rank in (self.context.rank, 0)
        )
        with torch.no_grad(), self.average.applied():
            for number, indices in enumerate(mine, start=1):
                ahead = mine[number : number + stepper.loader.depth]
                metrics.update(stepper.forward(stepper.batch(split, indices, ahead), model))
            # Rank 0 has the most batches. NOTE: the others must join its collective forward passes.
            if strategy.forward_is_collective and len(mine) < len(most):
                stepper.forward(stepper.batch(split, list(samples[:1])), model)
        model.train()
        return {f"{split}/{name}": value for name, value in metrics.compute().items()}

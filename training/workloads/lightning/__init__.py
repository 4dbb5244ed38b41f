"""Trains an existing `LightningModule`, or a module with the same steps, in the step loop."""

from trainfleet.training.workloads.lightning.workload import LightningWorkload

__all__ = ["LightningWorkload"]

"""Checkpoints: `checkpoints` decides when and what is saved and loaded, `plan` who writes what, `files` knows
torch's format.
"""

from trainfleet.training.checkpoint.checkpoints import CheckpointError, Checkpoints, Saved, step_name

__all__ = ["CheckpointError", "Checkpoints", "Saved", "step_name"]

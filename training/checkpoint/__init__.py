"""Checkpoints: `checkpoints` saves and loads, `retention` selects what to keep, `plan` assigns tensors to
ranks,
`files` implements torch's format.
"""

from trainfleet.training.checkpoint.checkpoints import CheckpointError, Checkpoints, Saved
from trainfleet.training.checkpoint.retention import step_name

__all__ = ["CheckpointError", "Checkpoints", "Saved", "step_name"]

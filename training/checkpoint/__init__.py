"""Checkpoints: `checkpoints` saves and loads, `retention` selects what to keep, `plan` assigns tensors to
ranks, `files` implements torch's format, `damage` verifies what was committed.
"""

from trainfleet.training.checkpoint.checkpoints import Checkpoints, Saved
from trainfleet.training.checkpoint.errors import CheckpointError
from trainfleet.training.checkpoint.retention import step_name

__all__ = ["CheckpointError", "Checkpoints", "Saved", "step_name"]

"""Preemption notices: when to look for one, and which checkpoint answers it."""

from __future__ import annotations

import time

from trainfleet.training.trainer.context import RunContext

CHECK_INTERVAL_S = 5.0
"""As often as Ray's own watcher. Each check is a call to another process."""


class PreemptionWatch:
    """The preemption notices of a run, on one rank."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._checked, self._known = time.monotonic(), False
        self._evacuation_step: int | None = None
        """The step at which a notice was heard, until its checkpoint is complete."""

    @property
    def due(self) -> bool:
        """Whether this rank wants all ranks to look for a notice."""
        return self._context.preempted is not None and time.monotonic() - self._checked > CHECK_INTERVAL_S

    def look(self, step: int) -> str | None:
        """The notice that a machine of the run has got, once per notice. May be collective."""
        if self._context.preempted is None:
            return None
        notice, self._checked = self._context.preempted(), time.monotonic()
        first, self._known = bool(notice) and not self._known, bool(notice)
        if first:
            self._evacuation_step = step
        return notice if first else None

    def on_saved(self, step: int) -> None:
        """Tell the context when the checkpoint that a notice asked for is complete."""
        if self._evacuation_step is not None and step >= self._evacuation_step:
            self._evacuation_step = None
            self._context.on_evacuated()

"""Preemption notices: when to look for one, and which checkpoint answers it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.readings import Reading

CHECK_INTERVAL_S = 5.0
"""As often as Ray's own watcher. Each check is a call to another process."""


class PreemptionWatch:
    """The preemption notices of a run, on one rank."""

    def __init__(self, context: RunContext, notify: Callable[[str, str], Any]) -> None:
        self._context, self._notify = context, notify
        self._checked, self._known = time.monotonic(), False
        self._evacuation_step: int | None = None
        """The step at which a notice was heard, until its checkpoint is complete."""

    @property
    def due(self) -> bool:
        """Whether this rank wants all ranks to look for a notice."""
        return self._context.preempted is not None and time.monotonic() - self._checked > CHECK_INTERVAL_S

    def noticed(self, known: list[Reading], step: int) -> bool:
        """Whether a machine of the run has got a preemption notice, once per notice: save now and continue.
        Looks if any rank wanted to, and may then be collective.
        """
        if self._context.preempted is None or not any(each.check_preemption for each in known):
            return False
        notice, self._checked = self._context.preempted(), time.monotonic()
        first, self._known = bool(notice) and not self._known, bool(notice)
        if first:
            self._evacuation_step = step
            self._notify("preemption", f"{notice}; saving at step {step}")
        return first

    def on_saved(self, step: int) -> None:
        """Tell the context when the checkpoint that a notice asked for is complete."""
        if self._evacuation_step is not None and step >= self._evacuation_step:
            self._evacuation_step = None
            self._context.on_evacuated()

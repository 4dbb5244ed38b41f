"""What is lost with a Kubernetes Job: nothing if it has ended, which only its recorded status tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainfleet.rehearsal.diff.data_loss import Loss
from trainfleet.rehearsal.simulation.pulumi_values import plain

_JOB = re.compile(r"kubernetes:batch/[^:]+:Job")
_ENDED = ("Complete", "Failed")
_UNKNOWN = (
    "the progress of the job, unless it has ended: its status is not known here (in a chart, or without"
    " --state)"
)


def job_loss(token: str, loss: Loss | None, deployed: Mapping[str, Any] | None) -> Loss | None:
    """Return what is lost with a resource of this type.

    Args:
        token: its type; every type but a Job loses `loss`.
        loss: what the type loses.
        deployed: its state in a real cluster; None if it is a simulated one, which runs no Job.
    """
    if loss is None or not _JOB.fullmatch(token):
        return loss
    status = plain((deployed or {}).get("outputs") or {}).get("status")
    if not isinstance(status, Mapping):
        return Loss(loss.kinds, _UNKNOWN, loss.loud)
    if ended := _ended(status):
        return Loss(
            ("nothing",), f"the job has ended ({ended}); its pods and their logs are deleted", loud=False
        )
    active = status.get("active")
    running = f"the job is running ({active} active pods)" if active else "the job has not ended"
    return Loss(loss.kinds, f"{running} at its last refresh: its progress", loss.loud)


def _ended(status: Mapping[str, Any]) -> str:
    """Return the condition with which a Job ended, and when; empty if it has not."""
    conditions = status.get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping) and each.get("type") in _ENDED and each.get("status") == "True":
            when = status.get("completionTime") or each.get("lastTransitionTime")
            return f"{each['type']}, {when}" if when else str(each["type"])
    return ""

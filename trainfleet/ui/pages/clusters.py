"""The clusters that `--stack` names (pools, queues, what waits in them, runs), or the declared pools of
outputs in the project."""

from __future__ import annotations

from typing import Any

from trainfleet.training.runtime.progress import duration
from trainfleet.ui.cluster_state import ClusterState, ClusterStates

WAIT_S = 0.7
"""How long a page waits for a cluster; it is shown without it afterwards."""


def contents(clusters: ClusterStates) -> dict[str, Any]:
    """What was read last of each cluster."""
    return {"clusters": [_shown(state, age_s) for state, age_s in clusters.all(WAIT_S)]}


def _shown(state: ClusterState, age_s: float | None) -> dict[str, Any]:
    reading = age_s is None
    runs = [
        {
            "name": run.name,
            "state": run.state,
            "step": run.step,
            "steps": run.steps,
            "age": "" if run.age_s() is None else duration(run.age_s() or 0.0),
            "launcher": run.launcher,
            "owner": run.owner,
            "message": run.message,
        }
        for run in state.runs
    ]
    word = (
        "reading"
        if reading
        else "not asked"
        if not state.asked
        else "reachable"
        if state.answered
        else "unreachable"
    )
    colour = {"reading": "warn", "not asked": "warn", "reachable": "ok", "unreachable": "bad"}[word]
    age = "" if age_s is None else f"read {duration(age_s)} ago"
    return {"state": state, "word": word, "colour": colour, "age": age, "runs": runs}

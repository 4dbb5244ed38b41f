"""The waits of a run on KubeRay that grow with its pods. Waits that do not are constants where they are used;
docs/kuberay.md lists both.
"""

from __future__ import annotations

from dataclasses import dataclass

SMALL = 10
"""Up to this many pods the waits are those of a small run."""


@dataclass(frozen=True)
class Timeouts:
    """The waits of a run with a number of pods."""

    machines_s: float
    """How long an admitted run waits for its pods, unless `--within` says otherwise."""
    workers_start_s: float
    """How long Ray Train waits for all workers to start (RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S; Ray's
    default is 60). It retries after that.
    """
    deletion_s: float
    """How long the objects of an earlier run of this name may take to disappear."""
    poll_s: float
    """The pause between two readings of the run's pods, which are about 20 kB each."""
    asked_at_once: int
    """Pods that are asked to save at the same time. One that does not answer costs 20 s."""


def timeouts(pods: int) -> Timeouts:
    """The waits of a run with `pods` pods that train.

    `machines_s` stays below the time after which Kueue evicts an admitted run whose pods are not ready
    (`NODE_START` of infra/kubernetes/queue.py): the launcher says what the run waits for, and Kueue does not.
    """
    more = max(0, pods - SMALL)
    return Timeouts(
        # The cluster autoscaler gives one node 30 minutes. More nodes are added in several rounds, and pull
        # the image from one registry.
        machines_s=min(2700.0, 1800.0 + 10 * more),
        # A placement group and eight processes per pod, which the head creates one after the other.
        workers_start_s=min(900.0, 300.0 + 3 * more),
        deletion_s=min(300.0, 60.0 + more),
        poll_s=min(10.0, 1.0 + 0.05 * more),
        asked_at_once=min(64, 16 + more),
    )

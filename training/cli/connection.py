"""Which cluster a command means: the one that is named, the one a run was launched on, or the current
context.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainfleet.training.launch.remote.kubernetes import Cluster


def connect_to(
    stack: str | None, context: str | None, namespace: str | None, run: str | None = None
) -> Cluster:
    """Connect to the cluster of a stack or context, else of `run`'s last launch here, else the current one.

    Raises:
        InputError: no such stack or context.
        MissingToolError: the package `kubernetes` is missing.
    """
    from trainfleet.training.launch.platform_outputs import load_platform
    from trainfleet.training.launch.remote.kubernetes import connect, contexts

    if stack is None and context is None and run is not None:
        stack, context, launched_in = launched_on(run)
        namespace = namespace or launched_in
    if stack is not None:
        outputs = load_platform(stack).outputs
        return connect(context, outputs.kubeconfig, outputs.kube_context, namespace or outputs.namespace)
    cluster = connect(context, "", "", namespace or "")
    known, _ = contexts()
    cluster.namespace = namespace or known.get(cluster.name, {}).get("namespace") or "training"
    return cluster


def launched_on(run: str) -> tuple[str | None, str | None, str | None]:
    """Stack, context and namespace of a run's last launch on KubeRay from this folder; None where unknown."""
    from trainfleet.training.runs.reader import read_run

    launches = read_run(Path("runs") / run).get("launches", []) if run == Path(run).name else []
    if not launches or launches[-1].get("on") != "kuberay":
        return None, None, None
    last = launches[-1]
    return next(iter(last.get("stacks", [])), None), last.get("context"), last.get("namespace")


@contextlib.contextmanager
def rejections_explained(cluster: Cluster) -> Iterator[None]:
    """Turn an API server's rejection into an error that the user can act on."""
    from trainfleet.training.launch.kuberay.checks import explain
    from trainfleet.training.launch.remote.kubernetes import ApiError

    try:
        yield
    except ApiError as error:
        raise explain(error, cluster) from error

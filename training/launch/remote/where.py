"""Which cluster a command means: the one that is named, the one of a run's last launch, or the current
context.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem, TrainfleetError

if TYPE_CHECKING:
    from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster


@dataclass(frozen=True)
class Where:
    """A cluster, as options name it."""

    stack: str | None = None
    context: str | None = None
    namespace: str | None = None

    @property
    def named(self) -> bool:
        """Whether the user named a cluster."""
        return self.stack is not None or self.context is not None

    def or_of(self, launch: Mapping[str, Any]) -> Where:
        """The same, completed from the record of a launch where no cluster is named."""
        if self.named:
            return self
        place = launch.get("place")
        place = place if isinstance(place, Mapping) else {}
        stack = next(iter(launch.get("stacks", [])), None)
        context = launch.get("context") or (None if stack else place.get("context"))
        namespace = self.namespace or launch.get("namespace") or (None if stack else place.get("namespace"))
        return Where(stack, context, namespace)

    def connect(self) -> Cluster:
        """Connect to it; without a name, to the current context.

        Raises:
            InputError: no such stack or context.
            MissingToolError: the package `kubernetes` is missing.
        """
        from trainfleet.training.launch.platform_outputs import load_platform
        from trainfleet.training.launch.remote.kubernetes import connect, contexts

        if self.stack is not None:
            outputs = load_platform(self.stack).outputs
            namespace = self.namespace or outputs.namespace
            return connect(self.context, outputs.kubeconfig, outputs.kube_context, namespace)
        cluster = connect(self.context, "", "", self.namespace or "")
        known, _ = contexts()
        cluster.namespace = self.namespace or known.get(cluster.name, {}).get("namespace") or "training"
        return cluster


@contextlib.contextmanager
def rejections_explained(cluster: Cluster) -> Iterator[None]:
    """Turn an API server's rejection into an error that the user can act on."""
    from trainfleet.training.launch.remote.kubernetes import ApiError

    try:
        yield
    except ApiError as error:
        raise explained(error, cluster) from error


def explained(error: ApiError, cluster: Cluster) -> TrainfleetError:
    """An API server's rejection of a command for runs: what to do, and that the storage needs no cluster."""
    other = "or --storage URL, which needs no cluster"
    name = cluster.name
    match error.status:
        case 0:
            fix = f"is it running, and are you in its network? `kubectl cluster-info` asks the same; {other}"
            return InputError("the cluster does not answer", [Problem(name, error.message, fix)])
        case 401:
            what = "your login has expired, or is not valid for this cluster"
            fix = f"{cluster.renew}, {other}"
            return InputError("the cluster rejects your login", [Problem(name, what, fix)])
        case 403:
            fix = f"ask for the role `trainfleet-launcher`, {other}"
            return InputError("permission denied by the cluster", [Problem(name, error.message, fix)])
    return InputError("the cluster rejects the request", [Problem(name, error.message)])

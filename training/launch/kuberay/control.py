"""The control of a run on KubeRay: through its cluster, and through its storage once its RayJob is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import InputError, MissingToolError
from trainfleet.training.launch.control import ALREADY_ENDED, Dashboard, RunControl
from trainfleet.training.launch.kuberay import runs
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.token import token_of
from trainfleet.training.launch.remote.forward import forwarded
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.log_stream import Line
from trainfleet.training.launch.remote.ray_job import DASHBOARD_PORT
from trainfleet.training.launch.remote.where import rejections_explained
from trainfleet.training.launch.request import Request
from trainfleet.training.runtime import code_archive
from trainfleet.training.stores import StoreError, is_remote
from trainfleet.training.stores.lease import request_stop


class KubeRayControl(RunControl):
    """A RayJob."""

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster that the user named, else the one of the launch."""
        return self.ref.where.or_of(self.ref.launch).connect()

    @cached_property
    def storage_only(self) -> bool:
        """Whether the user named the storage, and the cluster of the launch cannot be asked from here."""
        if not self.ref.by_storage:
            return False
        try:
            cluster = self.cluster
        except (InputError, MissingToolError):
            return True
        try:
            with contextlib.suppress(InputError):  # it is gone
                runs.find(cluster, self.ref.name)
        except ApiError:
            return True
        return False

    def lines(self, *, follow: bool) -> Iterator[Line]:
        """The log of its submitter, which stays after its machines; else its stored rows."""
        if self.storage_only:
            yield from super().lines(follow=follow)
            return
        with rejections_explained(self.cluster):
            found = self._found()
            if found is not None:
                yield from runs.lines(self.cluster, found, follow=follow)
                return
        yield from super().lines(follow=follow)

    def stop(self, *, now: bool, within_s: float, report: Callable[[str], Any]) -> str:
        """Ask its pods to save, wait for its end, and delete the RayJob."""
        if self.storage_only:
            return super().stop(now=now, within_s=within_s, report=report)
        with rejections_explained(self.cluster):
            found = self._found()
            if found is not None:
                ask = self._request_stop
                return runs.stop(self.cluster, found, ask, now=now, within_s=within_s, report=report)
        info = self.info()
        if info is None or info.state != "running":
            return ALREADY_ENDED
        # Another cluster has this context name here.
        return super().stop(now=now, within_s=within_s, report=report)

    def attach_request(self, folder: Path, as_json: bool) -> Request | None:
        """A launch that follows the RayJob; none if it is gone."""
        if self.storage_only:
            return None
        where = self.ref.where.or_of(self.ref.launch)
        with rejections_explained(self.cluster):
            found = self._found()
            if found is None:
                return None
            text, code = runs.recipe_of(self.cluster, found), runs.code_of(self.cluster, found)
        file = folder / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        code_archive.use(code, f"{folder}/code")
        options = KubeRayOptions(
            attach=True,
            launch=found.launch,
            cluster=found.ray_cluster if found.shared else None,
            context=None if where.stack else self.cluster.name,
            namespace=self.cluster.namespace,
            image="as-launched",
        )
        return Request(
            str(file),
            on="kuberay",
            stacks=(where.stack,) if where.stack else (),
            storage=_storage(text),
            json=as_json,
            options=options,
            launched_code=code,
        )

    @contextlib.contextmanager
    def dashboard(self, port: int, report: Callable[[str], Any]) -> Iterator[Dashboard]:
        """Through the API server."""
        with dashboard_in(self.cluster, self.ref.name, port, report) as found:
            yield found

    def _request_stop(self) -> bool:
        """Ask the run through its storage to save and end; whether it could be asked."""
        with contextlib.suppress(StoreError):
            return is_remote(self.ref.home) and request_stop(self.store())
        return False

    def _found(self) -> runs.ClusterRun | None:
        """The RayJob; None if it is gone and the run's files tell more.

        Raises:
            InputError: it is gone, and its storage is not known.
        """
        try:
            return runs.find(self.cluster, self.ref.name)
        except InputError:
            if is_remote(self.ref.home):
                return None
            raise


@contextlib.contextmanager
def dashboard_in(
    cluster: Cluster, name: str | None, port: int, report: Callable[[str], Any]
) -> Iterator[Dashboard]:
    """The dashboard of a run or Ray cluster; without a name, of the only one.

    Raises:
        InputError: there is none, or there are several and none was named.
    """
    with rejections_explained(cluster):
        head, ray_cluster = runs.head_of(cluster, name)
        try:
            token: str | None = token_of(cluster, head)
        except InputError:
            token = None
    pod = lambda: runs.head_of(cluster, ray_cluster)[0]  # noqa: E731
    with forwarded(cluster, pod, DASHBOARD_PORT, port, report) as local_port:
        yield Dashboard(f"http://127.0.0.1:{local_port}", ray_cluster, token)


def _storage(recipe: str) -> str | None:
    """Where the run stores its checkpoints, which the stack's storage must not replace."""
    document: Any = yaml.safe_load(recipe)
    return str(document["storage"]) if isinstance(document, dict) and "storage" in document else None

"""The launcher `--on ray-up`. `run_spec` resolves what runs, `cluster_yaml` and a module per cloud build the
cluster file, `checks` validates it, and `follow` represents the run on this machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.ray_up.messages import SPEC, RayUpSpec
from trainfleet.training.launch.ray_up.options import RayUpOptions
from trainfleet.training.launch.ray_up.run_spec import RunSpec, resolve, state_folder
from trainfleet.training.launch.remote.follower import Detached
from trainfleet.training.launch.request import Target
from trainfleet.training.launch.run_check import RunCheck
from trainfleet.training.recipe.schema import Recipe


class RayUp(Launcher[RayUpOptions]):
    """A Ray cluster on VMs or hosts."""

    remote = detachable = True
    grace_seconds = 900.0
    """A run that is asked to stop uploads its checkpoint first, and then its machines are deleted."""
    options_model = RayUpOptions

    def check(self, recipe: Recipe, target: Target) -> None:
        """Reject what the machines cannot run, as far as it can be known before any of them starts."""
        from trainfleet.training.launch.ray_up.checks import ready_for, require_free
        from trainfleet.training.launch.ray_up.kept_cluster import require_idle

        options = self.options(target)
        run = resolve(recipe, target, options, os.environ)
        require_free(recipe.home_url(), options.within_s)
        ready_for(run)
        if run.stays:
            require_idle(run, os.environ)

    def usd_per_hour(self, recipe: Recipe, target: Target) -> float | None:
        """That of the pool's machines."""
        return resolve(recipe, target, self.options(target), os.environ).usd_per_hour

    def run_checks(self, recipe: Recipe, target: Target) -> list[RunCheck]:
        """A process on the head, if it exists and its packages are those of the run."""
        from trainfleet.training.launch.ray_up.host_check import host_check

        return [host_check(resolve(recipe, target, self.options(target), os.environ), os.environ)]

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        """The command that starts the machines and follows the run."""
        spec = file.with_name("ray-up.json")
        run = resolve(recipe, target, self.options(target), os.environ)
        message = _follower_spec(run, detach=self.options(target).detach)
        message.write(spec)
        message.write(Path(message.file).with_name(SPEC))
        return [sys.executable, "-m", "trainfleet.training.launch.ray_up.follow", str(spec)]

    def place(self, recipe: Recipe, target: Target) -> dict[str, Any]:
        """The Ray cluster, its cloud or hosts, and its cluster file on this machine."""
        run = resolve(recipe, target, self.options(target), os.environ)
        file = str(state_folder(run.name) / "cluster.yaml")
        return {"cluster": run.name, "cloud": run.cloud, "hosts": list(run.hosts), "file": file}

    def control(self, ref: RunRef) -> RunControl:
        """Through the cluster file on this machine, else through the run's storage."""
        from trainfleet.training.launch.ray_up.control import RayUpControl

        return RayUpControl(ref)

    def render(self, recipe: Recipe, target: Target) -> str:
        """The cluster file. With `--write FILE` it is written there, and the next steps are shown."""
        from trainfleet.training.launch.ray_up.cluster_yaml import cluster_files, next_steps, rendered, write

        options = self.options(target)
        run = resolve(recipe, target, options, os.environ)
        if options.write is None:
            return rendered(run, cluster_files(Path(f"{run.name}.yaml")))
        write(run, Path(options.write), os.environ)
        return next_steps(run, Path(options.write))


def _follower_spec(run: RunSpec, *, detach: bool) -> RayUpSpec:
    """The message to the follower. Also writes the files of Ray's launcher."""
    from trainfleet.training.launch.ray_up.cluster_yaml import paid_for, submitted_job, write

    file = state_folder(run.name) / "cluster.yaml"
    write(run, file, os.environ)
    return RayUpSpec(
        detach=detach,
        within_s=run.within_s,
        saves=not run.instead,
        file=str(file),
        name=run.name,
        cloud=run.cloud,
        stays=run.stays,
        job=run.job,
        launch=run.launch,
        nodes=run.nodes,
        hosts=list(run.hosts),
        ssh_user=run.ssh_user,
        docker=run.docker,
        submit=submitted_job(run),
        paid_for=paid_for(run),
        detached=Detached(
            job=run.job,
            cluster=run.name,
            cluster_file=str(file),
            storage=run.recipe.home_url(),
            how=[
                f"submitted {run.recipe.name} as job {run.job} of the Ray cluster {run.name}",
                *paid_for(run),
                f"its log    ray dashboard {file}",
                f"stop it    ray down {file}",
                f"follow it  trainfleet runs attach {run.recipe.name}",
            ],
        ),
    )

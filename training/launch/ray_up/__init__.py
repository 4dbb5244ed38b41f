"""`--on ray-up`: Ray on machines of its own, by Ray's cluster launcher, for whoever has no Kubernetes: on
AWS, GCP, Azure or hosts at hand.

Used by `trainfleet.training.launch.supervise` as any way to start a run. `site` decides, `document` and the
module of each cloud write the cluster
file, `checks` looks before anything is made, and `follow` is the process that stands for the run on this
machine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.training.recipe.schema import Recipe

if TYPE_CHECKING:
    from trainfleet.training.launch.ray_up.run_spec import Site
    from trainfleet.training.launch.request import Target

AFAR = True
GRACE_S = 900.0
"""A run that is asked to stop uploads its checkpoint first, and then its machines must go."""


def check(recipe: Recipe, target: Target) -> None:
    """Refuse what the machines cannot run, as far as can be seen before any of them starts.

    Raises:
        InputError: options, storage, pool, hosts.
        MissingToolError: a program or package that Ray needs here.
    """
    from trainfleet.training.launch.ray_up.checks import ready_for
    from trainfleet.training.launch.ray_up.run_spec import decide

    ready_for(decide(recipe, target, os.environ))


def command(recipe: Recipe, file: Path, target: Target) -> list[str]:
    """The command that follows the run of `recipe`; what it needs to know lies beside `file`."""
    from trainfleet.training.launch.ray_up.run_spec import decide

    spec = file.with_name("ray-up.json")
    spec.write_text(json.dumps(specification(decide(recipe, target, os.environ), target)), encoding="utf-8")
    return [sys.executable, "-m", "trainfleet.training.launch.ray_up.follow", str(spec)]


def render(recipe: Recipe, target: Target) -> str:
    """The cluster file, without asking anybody; with `--write FILE` it and what it names are written there,
    and the next steps are shown.
    """
    from trainfleet.training.launch.ray_up.cluster_yaml import files, next_steps, rendered, write
    from trainfleet.training.launch.ray_up.run_spec import decide

    site = decide(recipe, target, os.environ)
    path = target.request.options.get("write")
    if not path:
        return rendered(site, files(Path(f"{site.name}.yaml")))
    write(site, Path(path), os.environ)
    return next_steps(site, Path(path))


def specification(site: Site, target: Target) -> dict[str, Any]:
    """What the following process is told, and the files that Ray's launcher reads: they stay while the
    machines do.
    """
    from trainfleet.training.launch.ray_up.cluster_yaml import job_document, write
    from trainfleet.training.launch.ray_up.run_spec import state_folder

    folder = state_folder(site.name)
    write(site, folder / "cluster.yaml", os.environ)
    return {
        "file": str(folder / "cluster.yaml"),
        "name": site.name,
        "cloud": site.cloud,
        "stays": site.stays,
        "job": site.job,
        "launch": site.launch,
        "nodes": site.nodes,
        "hosts": list(site.hosts),
        "ssh_user": site.ssh_user,
        "docker": site.docker,
        "within_s": site.within_s,
        "submit": job_document(site),
        "detach": target.request.detach,
        "detached": {
            "job": site.job,
            "storage": site.recipe.home_url(),
            "how": [
                f"{site.recipe.name} was handed over as job {site.job} of the Ray cluster {site.name}",
                "come back    the same command without --detach: it follows the run, and takes the machines down at its end",
                f"end it       ray down {folder / 'cluster.yaml'}",
            ],
        },
    }

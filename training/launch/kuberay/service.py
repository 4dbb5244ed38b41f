"""`trainfleet serve --on kuberay`: a RayService that keeps a trained model up, from the run's own recipe and
the platform's contract.

Used by `trainfleet.training.cli.use`. Easy to get wrong: the model lies in a store that this machine and the
pods both reach, so a folder
is refused; and made again under its name it is changed in place, without a gap.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet.console import out, print_json
from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.kuberay.checks import in_words, reach
from trainfleet.training.launch.kuberay.client import ApiError, connect
from trainfleet.training.launch.kuberay.manifest import files_of_service, ray_service, render
from trainfleet.training.launch.kuberay.run_spec import decide
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.stack_outputs import load_stacks
from trainfleet.training.recipe.schema import Recipe, ScalingConfig
from trainfleet.training.recipe.validation import check
from trainfleet.training.stores import NotThereError, open_store
from trainfleet.training.stores.urls import is_remote

LONGEST_NAME = 47
"""Of a RayService: KubeRay adds to it, and refuses more (MaxRayServiceNameLength)."""


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    source: str
    which: str
    replicas: int
    limits: dict[str, Any]
    name: str | None
    stack: str | None
    context: str | None
    namespace: str | None
    image: str | None
    pool: str | None
    from_secrets: tuple[str, ...]


def serve_there(wish: Wish, *, show: bool, as_json: bool) -> None:
    """Make the service, or change the one of this name, and say how to reach and to end it.

    Raises:
        InputError: the model is not in a store, or the cluster lacks something.
        MissingToolError: no KubeRay there.
    """
    recipe = _recipe(wish)
    request = Request(
        wish.source,
        on="kuberay",
        stacks=(wish.stack,) if wish.stack else (),
        context=wish.context,
        namespace=wish.namespace,
        image=wish.image,
        pool=wish.pool,
        cluster=wish.name or f"serve-{recipe.name}",  # names the files that its pods mount
        options={"from_secrets": wish.from_secrets},
    )
    places = tuple(load_stacks(request.stacks)) if request.stacks else ()
    site = decide(recipe, Target(request, places, Path()), os.environ)
    name = (wish.name or f"serve-{recipe.name}")[:LONGEST_NAME].rstrip("-")
    objects = [
        *files_of_service(site),
        ray_service(site, name, source=wish.source, which=wish.which, limits=wish.limits),
    ]
    if show:
        sys.stdout.write(render(objects))
        return
    cluster = connect(site.context, site.outputs.kubeconfig, site.outputs.kube_context, site.namespace)
    reach(cluster, site.namespace)
    try:
        for document in objects:
            cluster.apply(document)
    except ApiError as error:
        raise in_words(error, cluster) from error
    address = f"http://{name}-serve-svc.{site.namespace}:8000"
    if as_json:
        print_json(
            {"service": name, "namespace": site.namespace, "address": address, "replicas": wish.replicas}
        )
        return
    for line in (
        f"{site.namespace}/{name} is being served with {wish.replicas} replicas; inside the cluster at {address}",
        f"from here  kubectl -n {site.namespace} port-forward svc/{name}-serve-svc 8000",
        f"its state  kubectl -n {site.namespace} get rayservice {name}",
        f"end it     kubectl -n {site.namespace} delete rayservice {name}",
    ):
        out().print(line, markup=False, soft_wrap=True)


def _recipe(wish: Wish) -> Recipe:
    """The recipe of the run that is served, its workers as many as replicas."""
    if not is_remote(wish.source):
        problem = Problem(
            wish.source,
            "is a folder of this machine, which pods do not have",
            "the URL of a run: s3://BUCKET/runs/NAME",
        )
        raise InputError("pods cannot read this model", [problem])
    try:
        text = open_store(wish.source).read("recipe.yaml")
    except NotThereError as error:
        raise InputError(
            "no run there",
            [Problem(wish.source, "holds no recipe.yaml", "the URL of a run: s3://BUCKET/runs/NAME")],
        ) from error
    recipe, problems = check(yaml.safe_load(text))
    if recipe is None:
        raise InputError("the run's recipe cannot be read", [problem for _, problem in problems])
    return recipe.model_copy(
        update={
            "scaling": ScalingConfig(workers=wish.replicas, use_gpu=wish.pool is not None),
            "storage": wish.source.rpartition("/")[0],
        }
    )

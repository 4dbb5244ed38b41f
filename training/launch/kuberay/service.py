"""`trainfleet serve --on kuberay`: a RayService that serves a trained model."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet.console import out, print_json
from trainfleet.errors import InputError, Problem
from trainfleet.training.launch import code
from trainfleet.training.launch.kuberay.checks import explain, reach
from trainfleet.training.launch.kuberay.manifest import files_of_service, ray_service, render
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.run_spec import resolve
from trainfleet.training.launch.names import shortened
from trainfleet.training.launch.platform_outputs import load_platforms
from trainfleet.training.launch.remote.kubernetes import ApiError, connect
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.recipe.schema import Limits, Notifications, Recipe, ScalingConfig
from trainfleet.training.recipe.schema_data import DataLoading
from trainfleet.training.recipe.validation import check
from trainfleet.training.runtime import code_archive
from trainfleet.training.stores import NotFoundError, open_store
from trainfleet.training.stores.urls import is_remote

MAX_NAME_LENGTH = 47
"""Of a RayService: KubeRay appends to it, and rejects longer names (MaxRayServiceNameLength)."""
USE_URL = "the URL of a run: s3://BUCKET/runs/NAME"


@dataclass(frozen=True)
class ServiceOptions:
    """Which model is served, with which limits, and where."""

    source: str
    which: str
    replicas: int
    limits: dict[str, Any]
    precision: str | None
    name: str | None
    stack: str | None
    cluster: KubeRayOptions


def serve_on_kuberay(options: ServiceOptions, *, show: bool, as_json: bool) -> None:
    """Create the service, or update the one of this name without downtime, and report how to reach it.

    Raises:
        InputError: the model is not in a store, its workload is not found, or the cluster lacks something.
        MissingToolError: the cluster has no KubeRay.
    """
    launched = _code(options.source)
    recipe = _recipe(options)
    full_name = options.name or f"serve-{recipe.name}"
    # The pods mount the files named after the Ray cluster.
    cluster_options = options.cluster.model_copy(update={"cluster": full_name})
    request = Request(
        options.source,
        on="kuberay",
        stacks=(options.stack,) if options.stack else (),
        options=cluster_options,
    )
    platforms = tuple(load_platforms(request.stacks)) if request.stacks else ()
    target = Target(request, platforms, Path(), launched)
    run = resolve(recipe, target, cluster_options, os.environ, serving=True)
    name = shortened(full_name, MAX_NAME_LENGTH)
    service = ray_service(
        run,
        name,
        source=options.source,
        which=options.which,
        limits=options.limits,
        precision=options.precision,
    )
    objects = [*files_of_service(run), service]
    if show:
        sys.stdout.write(render(objects))
        return
    cluster = connect(run.context, run.outputs.kubeconfig, run.outputs.kube_context, run.namespace)
    reach(cluster, run.namespace)
    try:
        for document in objects:
            cluster.apply(document)
    except ApiError as error:
        raise explain(error, cluster) from error
    _report(name, run.namespace, options.replicas, as_json=as_json)


def _report(name: str, namespace: str, replicas: int, *, as_json: bool) -> None:
    address = f"http://{name}-serve-svc.{namespace}:8000"
    if as_json:
        print_json({"service": name, "namespace": namespace, "address": address, "replicas": replicas})
        return
    for line in (
        f"serving {namespace}/{name} with {replicas} replicas",
        f"from pods of the namespace {namespace}  {address}",
        f"from here  kubectl -n {namespace} port-forward svc/{name}-serve-svc 8000",
        f"its state  kubectl -n {namespace} get rayservice {name}",
        f"stop it    kubectl -n {namespace} delete rayservice {name}",
    ):
        out().print(line, markup=False, soft_wrap=True)


def _code(source: str) -> code.Code | None:
    """The code that the run used last, which this process then imports from first: it reads the recipe.

    Raises:
        StoreError: the archive cannot be read.
    """
    if not is_remote(source):
        return None
    try:
        record = json.loads(open_store(source).read("run.json"))
    except (NotFoundError, ValueError):  # a published folder
        return None
    digest = code.last_digest(record)
    if not digest:
        return None
    url = f"{source.rstrip('/')}/{code_archive.archive_path(digest)}"
    code_archive.use(url)
    return code.stored(url)


def _recipe(options: ServiceOptions) -> Recipe:
    """The recipe of the served run, with one worker per replica. What only training needs is left out: a
    service has no limits, sends no notifications and loads no batches.
    """
    source = options.source
    if not is_remote(source):
        problem = Problem(source, "is a folder of this machine, which pods do not have", USE_URL)
        raise InputError("pods cannot read this model", [problem])
    try:
        text = open_store(source).read("recipe.yaml")
    except NotFoundError as error:
        raise InputError("no such run", [Problem(source, "has no recipe.yaml", USE_URL)]) from error
    recipe, problems = check(yaml.safe_load(text))
    if recipe is None:
        raise InputError("cannot read the run's recipe", [problem for _, problem in problems])
    if unknown := [problem for keys, problem in problems if keys == ("workload", "name")]:
        raise InputError("the run's workload is not found", unknown)
    scaling = ScalingConfig(workers=options.replicas, use_gpu=options.cluster.pool is not None)
    storage = source.rpartition("/")[0]
    unused = {"limits": Limits(), "notifications": Notifications(), "data_loading": DataLoading()}
    return recipe.model_copy(update={"scaling": scaling, "storage": storage, **unused})

"""The Job of a workload check, also that of `predict --on` and `evaluate --on`, whose ranks do not train."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.launch.fake_api import FakeApi
from tests.training.launch.kuberay_follower import cluster_of
from tests.training.launch.kuberay_launches import run_spec
from tests.training.launch.saved_platforms import outputs as saved
from tests.training.launch.sky_tasks import recipe as sky_recipe
from tests.training.launch.test_workload_check import CHECK, pod_of, validated
from trainfleet.training.inference.job import recipe_document
from trainfleet.training.launch.kuberay.launcher import checked_run
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote import workload_check as checks
from trainfleet.training.launch.remote.workload_check import workload_check
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.launcher import Sky
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.run_spec import resolve as resolve_sky
from trainfleet.training.recipe.load import load_recipe


@pytest.mark.parametrize(("task", "status"), [("predict", 0), ("evaluate", 2)])
def test_only_a_job_that_reads_the_data_of_the_training_needs_it(
    task: str, status: int, tmp_path: Path
) -> None:
    trained = load_recipe("lm-tiny", [f"storage={tmp_path}/runs", f"workload.data.source={tmp_path}/none"])
    text = json.dumps(recipe_document(trained, f"lm-tiny-{task}-1", 1, None))
    job = json.dumps({"task": task, "arguments": {}})
    assert validated(tmp_path, text, job=job)[0] == status


@pytest.mark.parametrize("on", ["kuberay", "sky"])
def test_the_pod_of_the_check_knows_what_the_ranks_do_instead_of_training(on: str) -> None:
    job = json.dumps({"task": "predict", "arguments": {}})
    if on == "kuberay":
        found = workload_check(checked_run(replace(run_spec(), instead=job)), "always")
    else:
        platform = NamedPlatform(saved("aws-prod"), Path("aws-prod.json"))
        request = Request("lm-1b", on="sky", options=SkyOptions(workload_check="always"), job=job)
        target = Target(request, (platform,), Path("runs/lm-1b"))
        run = resolve_sky(sky_recipe(), target, SkyOptions(workload_check="always"), {})
        (found,) = Sky()._checks(run, sky_recipe(), target).values()
    assert found is not None
    (container,) = pod_of(found)["containers"]
    assert {"name": "TRAINFLEET_JOB", "value": job} in container["env"]


def test_the_check_of_a_later_launch_is_kept(api: FakeApi) -> None:
    document = workload_check(checked_run(run_spec()), "always")
    assert document is not None
    check = checks._Check(cluster_of(api), document, print, print, lambda: False)
    check._create()
    later = {"metadata": {"name": "tf-lm-tiny-check", "uid": "later"}}
    api.objects[CHECK] = later
    check._delete()
    assert api.objects[CHECK] == later

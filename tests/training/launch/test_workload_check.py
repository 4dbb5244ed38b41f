"""The workload check: what its pod shares with the run, what it finds there, and that no machine is requested
before it has passed. The cluster is a loopback server; tests/cluster uses a real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import JOB, JOBS, PODS, FakeApi, owned_by
from tests.training.launch.fake_sky import FakeSky, driven
from tests.training.launch.kuberay_follower import LOG, follower, running, status
from tests.training.launch.kuberay_launches import outputs, run_spec
from tests.training.user_code import write_workload
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.code import packed
from trainfleet.training.launch.kuberay.launcher import checked_run
from trainfleet.training.launch.kuberay.pods import head_pod
from trainfleet.training.launch.options import When
from trainfleet.training.launch.remote import workload_check as checks
from trainfleet.training.launch.remote.follower import Stopped, exit_code
from trainfleet.training.launch.remote.workload_check import WorkloadCheck, workload_check
from trainfleet.training.launch.sky import follow as sky_follow
from trainfleet.training.recipe.load import dump, load_recipe

CHECK = "/apis/batch/v1/namespaces/training/jobs/tf-lm-tiny-check"
CHECK_POD = f"{PODS}/tf-lm-tiny-check-x"
FAULT = {
    "kind": "error",
    "summary": "workload not found",
    "problems": [
        ["/code/spirals.py:1", "importing `spirals` failed: No module named 'pandas'", "install it"]
    ],
    "exit_code": 2,
}
WAITING = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}


def made(when: When = "always", **changes: Any) -> WorkloadCheck:
    """The check of a launch on a platform."""
    found = workload_check(checked_run(run_spec(**changes)), when)
    assert found is not None
    return found


def pod_of(check: WorkloadCheck) -> dict[str, Any]:
    spec: dict[str, Any] = check.job["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_WAIT_S", "START_WAIT_S", "RUN_S", "IMAGE_TIMEOUT_S"):
        monkeypatch.setattr(checks, name, 0.2)
    monkeypatch.setattr(checks, "POLL_S", 0.02)


def pod_ends(api: FakeApi, phase: str, *lines: Any, reason: str = "Error") -> None:
    """The pod of the check ends as soon as there is one, and has printed these lines."""
    ended = {"terminated": {"exitCode": 2, "reason": reason}}
    pod_is(api, {"phase": phase, "containerStatuses": [{"state": ended}] if reason else []})
    api.logs[CHECK_POD.rpartition("/")[2]] = "".join(
        f"2026-01-01T00:00:00.{number:09}Z {each if isinstance(each, str) else json.dumps(each)}\n"
        for number, each in enumerate(lines)
    )


def pod_is(api: FakeApi, state: dict[str, Any]) -> None:
    """While the Job exists, it has a pod in this state; once the RayJob exists, the run is executed."""

    def act(server: FakeApi) -> None:
        status(server, jobDeploymentStatus="Running", rayClusterName="rc")
        server.objects.pop(CHECK_POD, None)
        if CHECK in server.objects:
            metadata = {"name": CHECK_POD.rpartition("/")[2]} | owned_by(server, CHECK)
            server.objects[CHECK_POD] = {"metadata": metadata, "status": state}
        elif JOB in server.objects:
            running(server, LOG)

    api.on_request = act


def created(api: FakeApi) -> list[str]:
    """What was created, in order."""
    return [path.rpartition("/")[2] for method, path in api.asked if method == "POST"]


# What is checked, and how


@pytest.mark.parametrize(
    ("when", "gpus", "checked"),
    [
        ("auto", False, False),
        ("auto", True, True),
        ("always", False, True),
        ("never", True, False),
    ],
)
def test_runs_on_gpus_are_checked_unless_the_user_says_otherwise(
    when: When, gpus: bool, checked: bool
) -> None:
    spec = run_spec(f"scaling.use_gpu={str(gpus).lower()}", "scaling.workers=1")
    assert (workload_check(checked_run(spec), when) is not None) is checked


def test_the_pod_has_the_image_variables_and_permissions_of_the_run() -> None:
    platform = outputs(storage_secret="store-key")
    settings: dict[str, Any] = {"platform": platform, "from_secrets": ("mine",), "image": "me/other:2"}
    env = {"AWS_ENDPOINT_URL": "https://store.example", "AWS_REGION": "us-east-2"}
    spec = run_spec(env=env, **settings)
    pod, head = pod_of(made(env=env, **settings)), head_pod(spec)["spec"]
    (one,), (other,) = pod["containers"], head["containers"]
    assert one["image"] == other["image"] == "me/other:2"
    assert one["envFrom"] == other["envFrom"]
    variables = {each["name"]: each for each in one["env"]}
    assert all(each in variables.values() for each in other["env"] if not each["name"].startswith("RAY_"))
    assert pod["serviceAccountName"] == head["serviceAccountName"] == "trainer"
    assert pod["securityContext"] == head["securityContext"]
    assert one["securityContext"] == other["securityContext"]
    shared = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
    assert shared in pod["volumes"]
    assert shared in head["volumes"]


def test_the_pod_requests_no_gpu_and_its_job_ends_by_itself() -> None:
    check = made()
    (container,) = pod_of(check)["containers"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "nodeSelector" not in pod_of(check)
    assert check.job["spec"]["backoffLimit"] == 0
    assert check.job["spec"]["activeDeadlineSeconds"] > 0
    assert check.job["spec"]["ttlSecondsAfterFinished"] > 0
    assert "kueue.x-k8s.io/queue-name" not in check.job["metadata"]["labels"]


# On a cluster


def test_a_valid_workload_starts_the_run(api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pod_ends(api, "Succeeded")
    found, output = follower(monkeypatch, workload_check="always")
    assert exit_code(found.run, output) == 0
    assert created(api)[:2] == ["jobs", "rayjobs"]
    assert "the workload is valid" in output.notes()
    assert CHECK not in api.objects


def test_an_invalid_workload_requests_no_machines_and_shows_the_users_line(
    api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pod_ends(api, "Failed", "a line of the workload's own", FAULT)
    found, _ = follower(monkeypatch, workload_check="always")
    with pytest.raises(InputError, match=r"workload not found \(checked in the image .*\)") as caught:
        found.run()
    assert "/code/spirals.py:1" in str(caught.value)
    assert "No module named 'pandas'" in str(caught.value)
    assert "a line of the workload's own" in capsys.readouterr().out
    assert "rayjobs" not in created(api)
    assert (CHECK in api.objects, JOB in api.objects) == (False, False)


def test_a_check_without_a_report_shows_the_last_line(
    api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_ends(api, "Failed", "/usr/bin/python: No module named trainfleet")
    found, _ = follower(monkeypatch, workload_check="always")
    with pytest.raises(TrainfleetError, match=r"exit code 2.*No module named trainfleet"):
        found.run()
    assert "rayjobs" not in created(api)


IMAGE = {"state": {"waiting": {"reason": "ErrImageNeverPull"}}, "image": "me/x:1"}
NEVER_STARTS: dict[str, dict[str, Any]] = {
    "no node": {"phase": "Pending", "conditions": [WAITING]},
    "a node that never starts it": {"phase": "Pending"},
    "a validation that hangs": {"phase": "Running"},
}


@pytest.mark.parametrize("pod", NEVER_STARTS.values(), ids=NEVER_STARTS)
@pytest.mark.parametrize("required", [False, True])
def test_a_check_that_cannot_run_delays_a_run_only_for_a_while(
    required: bool, pod: dict[str, Any], api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_is(api, pod)
    found, output = follower(monkeypatch, workload_check="always")
    assert found.spec.check is not None
    found.spec.check.required = required
    if required:
        with pytest.raises(TrainfleetError, match="the workload could not be checked"):
            found.run()
    else:
        assert exit_code(found.run, output) == 0
        assert "the workload was not checked: " in output.notes()
    assert ("rayjobs" in created(api)) is not required
    assert CHECK not in api.objects


@pytest.mark.parametrize("reason", ["OOMKilled", ""])
def test_a_pod_that_was_lost_or_had_too_little_memory_does_not_end_a_launch(
    reason: str, api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_ends(api, "Failed", reason=reason)
    found, output = follower(monkeypatch, workload_check="always")
    assert found.spec.check is not None
    found.spec.check.required = False
    assert exit_code(found.run, output) == 0
    assert "the workload was not checked: it" in output.notes()


def test_an_image_that_cannot_be_pulled_is_found_before_machines_are_requested(
    api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_is(api, {"phase": "Pending", "containerStatuses": [IMAGE]})
    found, _ = follower(monkeypatch, workload_check="always")
    with pytest.raises(InputError, match="the run's pods cannot start"):
        found.run()
    assert "rayjobs" not in created(api)
    assert CHECK not in api.objects


def test_an_account_that_may_not_create_jobs_starts_the_run_unchecked(
    api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refusals["POST", CHECK.rpartition("/")[0]] = (403, "jobs.batch is forbidden")
    pod_is(api, {})
    found, output = follower(monkeypatch, workload_check="always")
    assert found.spec.check is not None
    found.spec.check.required = False
    assert exit_code(found.run, output) == 0
    assert "the workload was not checked: jobs.batch is forbidden" in output.notes()
    assert "cannot delete" not in output.notes()


@pytest.mark.parametrize("how", ["stop", "detach"])
def test_a_launch_that_is_left_meanwhile_stops_or_starts_at_once(
    how: str, api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "POLL_S", 0.02)
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    pod_is(api, {"phase": "Pending", "conditions": [WAITING]})
    exists = api.on_request

    def leave(server: FakeApi) -> None:
        exists(server)
        if CHECK in server.objects:
            (tmp_path / how).touch()

    api.on_request = leave
    found, output = follower(monkeypatch, workload_check="always")
    assert found.spec.check is not None
    found.spec.check.required = False
    if how == "stop":
        with pytest.raises(Stopped):
            found.run()
        assert created(api) == ["jobs"]
    else:
        assert exit_code(found.run, output) == 0
        assert output.of("detached")
        assert JOBS in [path for method, path in api.asked if method == "POST"]
    assert CHECK not in api.objects


def test_a_check_of_an_earlier_launch_is_replaced(
    api: FakeApi, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod_ends(api, "Succeeded")
    api.objects[CHECK] = {"metadata": {"name": "tf-lm-tiny-check", "uid": "old"}}
    before = {"name": "before", **owned_by(api, CHECK)}  # its pod is still terminating
    api.objects[f"{PODS}/before"] = {"metadata": before, "status": {"phase": "Failed"}}
    found, output = follower(monkeypatch, workload_check="always")
    assert exit_code(found.run, output) == 0
    assert "the workload is valid" in output.notes()


def test_a_long_lived_cluster_is_not_checked_and_cannot_be() -> None:
    with pytest.raises(InputError, match="--workload-check always"):
        run_spec(cluster="big", workload_check="always")


def test_skypilot_is_not_asked_before_the_workload_is_valid(
    api: FakeApi, quick: None, reported: list[dict[str, Any]]
) -> None:
    pod_ends(api, "Failed", FAULT)
    sky, check = FakeSky(), made().model_dump()
    place = {"contexts": {"fake": "training"}, "checks": {"fake": check}}
    with pytest.raises(InputError, match="workload not found"):
        driven(reported, sky, **place).run()
    assert [call[0] for call in sky.calls] == ["status"]
    pod_ends(api, "Succeeded")
    assert driven(reported, sky, **place).run() == 0
    assert ("launch", "tf-night", True) in sky.calls


def test_a_stop_during_the_check_ends_the_follower_of_skypilot(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, reported: list[dict[str, Any]], tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    (tmp_path / "stop").touch()
    pod_is(api, {"phase": "Pending"})
    sky = FakeSky()
    with pytest.raises(Stopped):
        driven(reported, sky, contexts={"fake": "training"}, checks={"fake": made().model_dump()}).run()
    assert not any(call[0] == "launch" for call in sky.calls)
    assert sky_follow.STOPPED == 130


# In the pod


def validated(folder: Path, recipe: str, code: str = "", job: str = "") -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the events of the pod's process."""
    (folder / "recipe.yaml").write_text(recipe)
    env = {
        **os.environ,
        "TMPDIR": str(folder),
        "TRAINFLEET_FILES": str(folder),
        **({"TRAINFLEET_CODE": code} if code else {}),
        **({"TRAINFLEET_JOB": job} if job else {}),
    }
    command = [sys.executable, "-m", checks.MODULE]
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_run_without_its_data_does_not_pass_the_check(tmp_path: Path) -> None:
    text = dump(load_recipe("lm-tiny", [f"storage={tmp_path}/runs", f"workload.data.source={tmp_path}/none"]))
    status, (event,) = validated(tmp_path, text)
    assert status == 2
    assert "workload.data.source" in str(event)
    assert "does not exist" in str(event)


def test_the_pod_validates_the_code_of_the_launch(tmp_path: Path) -> None:
    recipe = write_workload(tmp_path / "mine")
    code = packed(recipe.parent, str(tmp_path / "run"))
    code.upload()
    (tmp_path / "pod").mkdir()
    text = f"{recipe.read_text()}\nstorage: {tmp_path}/runs\n"
    assert validated(tmp_path / "pod", text, code.url) == (0, [])
    assert not list((tmp_path / "runs").rglob(".probe"))


@pytest.mark.deep
def test_the_pod_reports_a_package_that_its_image_lacks_with_the_users_line(tmp_path: Path) -> None:
    recipe = write_workload(tmp_path / "mine")
    source = recipe.parent / "spirals.py"
    source.write_text("import no_such_package\n" + source.read_text())
    code = packed(recipe.parent, str(tmp_path / "run"))
    code.upload()
    (tmp_path / "pod").mkdir()
    status, (event,) = validated(tmp_path / "pod", recipe.read_text(), code.url)
    assert (status, event["kind"], event["summary"]) == (2, "error", "workload not found")
    text = json.dumps(event["problems"])
    assert "No module named 'no_such_package'" in text
    assert "spirals.py:1" in text
    assert "in <module>: import no_such_package" in text


def test_the_pod_reports_an_error_in_the_users_settings_with_its_line(tmp_path: Path) -> None:
    recipe = write_workload(tmp_path / "mine")
    source = recipe.parent / "spirals.py"
    source.write_text(
        source.read_text().replace(
            "        width: int = 32\n",
            "        width: int = 32\n        def check_recipe(self, recipe):\n            return 1 / 0\n",
        )
    )
    status, (event,) = validated(tmp_path, recipe.read_text(), str(recipe.parent))
    assert (status, event["summary"]) == (2, "the workload fails")
    text = json.dumps(event["problems"])
    assert "ZeroDivisionError: division by zero" in text
    assert "in check_recipe: return 1 / 0" in text
    assert "site-packages" not in text


@pytest.mark.deep
def test_the_pod_reports_a_storage_that_it_cannot_write_to(tmp_path: Path) -> None:
    recipe = write_workload(tmp_path / "mine")
    (tmp_path / "file").write_text("not a folder")
    text = f"{recipe.read_text()}\nstorage: {tmp_path}/file/runs\n"
    status, (event,) = validated(tmp_path, text, str(recipe.parent))
    assert status != 0
    assert f"{tmp_path}/file/runs" in json.dumps(event)

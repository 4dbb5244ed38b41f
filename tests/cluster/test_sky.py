"""SkyPilot on a real cluster with the rights of a stack's launcher account: setup, checks, launches, moves.

Two namespaces act as two platforms (sky_place.py). A launch takes minutes on two CPUs, so each one tests
several things.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import until
from tests.cluster.faults import Note, show
from tests.cluster.launches import document, losses
from tests.cluster.sky_place import FAR, NEAR, TWO, Place, granted, place
from tests.training.user_code import FEW_STEPS, write_page

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
__all__ = ["place"]
MOVES = range(int(os.environ.get("TRAINFLEET_REPEATS", "1")))
TINY_POD = ("scaling.workers=1", "scaling.cpus_per_worker=0.25")


def test_the_contexts_request_tokens_of_the_launcher_and_are_ready(place: Place) -> None:
    access = yaml.safe_load((place.folder / "access").read_text())
    users = {user["name"]: user["user"] for user in access["users"]}
    for each in access["contexts"]:
        assert list(users[each["context"]["user"]]) == ["exec"]
    done = place.call(
        "sky", "check", "--stack", f"{NEAR}.json", "--stack", f"{FAR}.json", "--quick", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert [each["ready"] for each in json.loads(done.stdout)] == [True, True]


def test_an_invalid_token_is_reported_before_anything_starts(place: Place) -> None:
    stale = place.with_tokens("header.payload.signature")
    done = stale.call("sky", "check", "--stack", f"{NEAR}.json", "--quick")
    assert done.returncode == 1
    assert "its token is not valid" in done.stderr
    launched = stale.launch("stale", NEAR, FAR)
    assert launched.returncode == 1
    assert "no context can be used" in launched.stderr
    assert launched.stderr.count("its token is not valid") == 2
    assert not place.pods(NEAR, FAR)


def test_tokens_that_are_revoked_are_reported_and_renewed_by_a_setup(place: Place) -> None:
    check = ("sky", "check", "--stack", f"{FAR}.json", "--quick")
    assert place.call(*check).returncode == 0
    place.cluster.kubectl("-n", FAR, "delete", "serviceaccount", "launcher")
    place.cluster.apply(*granted(FAR))
    # The API server keeps what it knows of a token for ten seconds.
    until(lambda: "its token is not valid" in place.call(*check).stderr, "the token is revoked", 60)
    done = place.call(
        "sky", "setup", "--stack", f"{NEAR}.json", "--stack", f"{FAR}.json", "--managed", "--yes"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a token that ends at") == 2
    assert place.call(*check).returncode == 0


@pytest.mark.deep
def test_without_capacity_in_the_first_context_it_runs_in_the_second_with_the_losses_of_a_local_run(
    place: Place,
) -> None:
    with place.closed(NEAR):
        there = place.launch("two", NEAR, FAR)
    assert there.returncode == 0, there.stderr
    found, here = document(there.stdout), place.here("h-two")
    assert found["status"] == "finished"
    assert losses(found) == losses(here)
    assert found["metrics"]["test/loss"] == pytest.approx(here["metrics"]["test/loss"], abs=1e-6)
    place.gone()


def launch_of(recipe: Path, place: Place) -> tuple[str, ...]:
    """The arguments that launch a recipe with the code of its folder."""
    return (
        *("launch", str(recipe), "--on", "sky", "--stack", f"{NEAR}.json", "--from-secret", "s3-keys"),
        *("--storage", f"{place.store.url}/runs", "--run", "edited", "--code", str(recipe.parent), "--json"),
        *TWO,
        *FEW_STEPS,
    )


@pytest.mark.slow  # a run of the check alone
def test_a_workload_that_the_image_cannot_import_is_reported_before_the_run(place: Place) -> None:
    recipe = write_page(place.folder / "lacking")
    source = recipe.parent / "spirals.py"
    # pytest is installed on this machine and not in the image.
    source.write_text("import pytest\n" + source.read_text())
    lacking = place.call(*launch_of(recipe, place), "--workload-check", "always")
    assert lacking.returncode == 2, lacking.stderr
    assert "No module named 'pytest'" in lacking.stderr
    assert "spirals.py:1: in <module>: import pytest" in lacking.stderr
    assert not place.pods(NEAR)


def test_a_workload_edited_in_a_scratch_folder_runs_without_an_image_build(place: Place) -> None:
    recipe = write_page(place.folder / "scratch", unit="as edited")
    done = place.call(*launch_of(recipe, place))
    assert done.returncode == 0, done.stderr
    record = place.record("edited")
    assert record["unit"] == "as edited"
    assert [start["code"] for start in record["starts"]] == [record["launches"][-1]["code"]["digest"]]
    place.gone()


@pytest.mark.deep
@pytest.mark.parametrize("number", MOVES)
def test_a_managed_job_that_loses_its_context_moves_with_the_losses_of_a_local_run(
    number: int, place: Place, record_property: Note
) -> None:
    run, local = f"cut-{number}", f"h-cut-{number}"
    fsdp = ("strategy=fsdp", "steps=240", "log.every=1", "checkpoint.every=20", "validation.every=240")
    with place.launched(run, NEAR, FAR, more=(*TWO, *fsdp, "--managed")) as launch:
        launch.reach(60)
        with place.closed(NEAR):
            place.cluster.kubectl("-n", NEAR, "delete", "pods", "--all", "--grace-period=0", "--force")
            assert launch.process.wait(900) == 0, launch.output
    (move,) = place.record(run)["launches"][-1]["moves"]
    show(record_property, "fsdp: moved to another cluster", **move["seconds"])
    assert (move["from"], move["to"]) == (NEAR, FAR)
    assert list(move["seconds"]) == ["noticed", "placed", "set_up", "resumed"]
    assert move["text"] in launch.output
    starts = [start["from_step"] for start in place.record(run)["starts"]]
    assert starts[0] == 0
    assert starts[-1] >= 40, "it did not resume from a checkpoint"
    again = place.launch(run, NEAR, FAR, more=(*TWO, *fsdp))
    assert losses(document(again.stdout)) == losses(place.here(local, *fsdp)), (
        "a second launch of a finished run reports other losses"
    )
    place.gone()


def test_without_capacity_anywhere_it_reports_what_was_tried_and_why(place: Place) -> None:
    with place.closed(NEAR, FAR):
        done = place.launch("nowhere", NEAR, FAR)
    assert done.returncode == 1
    assert f"no capacity anywhere; tried {NEAR}, {FAR}" in done.stderr
    assert "the quota `none` does not allow" in done.stderr
    assert "Traceback" not in done.stderr
    place.gone()


@pytest.mark.slow
def test_an_image_that_cannot_be_pulled_is_reported_within_the_time_limit(place: Place) -> None:
    done = place.launch(
        "no-image", NEAR, more=(*TINY_POD, "--image", "localhost/nobody-made-this:1", "--within", "1.5")
    )
    assert done.returncode == 1
    assert "the image cannot be pulled" in done.stderr
    place.gone()


@pytest.mark.deep
def test_a_small_task_checks_both_contexts(place: Place) -> None:
    done = place.call("sky", "check", "--stack", f"{NEAR}.json", "--stack", f"{FAR}.json", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each["ran"] for each in json.loads(done.stdout)] == [True, True]
    place.gone()


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_longer_recipe_on_two_pods_has_the_losses_of_a_local_run(place: Place, strategy: str) -> None:
    there = place.launch(f"small-{strategy}", NEAR, more=(*TWO, f"strategy={strategy}"), recipe="lm-small")
    assert there.returncode == 0, there.stderr
    assert losses(document(there.stdout)) == losses(
        place.here(f"h-small-{strategy}", f"strategy={strategy}", recipe="lm-small")
    )
    place.gone()


@pytest.mark.deep
def test_a_managed_job_refuses_a_duplicate_name_and_recovers_from_a_deleted_pod(
    place: Place,
) -> None:
    long = ("steps=400", "log.every=20", "checkpoint.every=20", "validation.every=400")
    with place.launched("lost-pod", NEAR, more=(*TWO, *long, "--managed")) as launch:
        launch.reach(60)
        twice = place.elsewhere().launch("lost-pod", NEAR, more=(*TWO, *long, "--managed"))
        assert (twice.returncode, "already in progress" in twice.stderr) == (2, True), twice.stderr
        worker = next(pod for pod in place.pods(NEAR) if "worker" in pod)
        place.cluster.kubectl("-n", NEAR, "delete", worker, "--grace-period=0", "--force")
        assert launch.process.wait(900) == 0, launch.output
    (move,) = place.record("lost-pod")["launches"][-1]["moves"]
    assert (move["from"], move["to"]) == (NEAR, NEAR)
    again = place.launch("lost-pod", NEAR, more=(*TWO, *long))
    assert losses(document(again.stdout)) == losses(place.here("h-lost-pod", *long))
    place.gone()


@pytest.mark.deep
def test_ctrl_c_lets_the_pods_save_and_removes_them(place: Place) -> None:
    endless = ("steps=20000", "log.every=20", "checkpoint.every=1000", "validation.every=20000")
    with place.launched("stopped", NEAR, more=(*TWO, *endless)) as launch:
        launch.reach(60)
        assert launch.interrupt() == 130, launch.output
    place.gone()
    assert "which is saved" in launch.output
    (saved,) = (place.store.folder / "runs" / "runs" / "stopped" / "checkpoints").glob("step-*")
    assert int(saved.name.removeprefix("step-")) >= 60

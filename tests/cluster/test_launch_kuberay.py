"""A recipe on a real cluster: the losses of a local run, stop and resume, detach and attach, and cleanup."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.faults import losses as stored_losses
from tests.cluster.launches import LONG, PROGRAM, SMALL, Launch, Place, document, launched, losses, place
from tests.cluster.observed_run import OBSERVED_STEPS, ObservedRun
from tests.training.user_code import FEW_STEPS, write_page
from trainfleet.local_cluster.images import LOCAL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
__all__ = ["place"]


def test_a_run_that_was_stopped_has_the_losses_of_a_local_run(
    observed_run: ObservedRun, tmp_path: Path
) -> None:
    logged = stored_losses(observed_run.stored)
    assert max(logged) >= OBSERVED_STEPS
    there = {step: loss for step, loss in logged.items() if step <= 4 * OBSERVED_STEPS}
    with (tmp_path / "here.out").open("w") as log:
        process = subprocess.Popen(
            [
                *(PROGRAM, "launch", "lm-tiny", "--on", "torchrun", "--run", "here"),
                *("--storage", str(tmp_path), f"workload.data.source={observed_run.text}"),
                *observed_run.settings,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            text=True,
        )
    here = Launch(process, tmp_path / "here.out")
    try:
        here.reach(max(there))
        assert here.interrupt() == 130, here.output
    finally:
        here.kill()
    found = stored_losses(tmp_path / "here")
    assert there == {step: loss for step, loss in found.items() if step <= max(there)}


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("recipe", ["lm-tiny", "lm-small"])
def test_a_run_on_the_cluster_has_the_losses_of_a_local_run(recipe: str, strategy: str, place: Place) -> None:
    run = f"{recipe}-{strategy}"
    there = place.launch(run, f"strategy={strategy}", "--json", recipe=recipe)
    assert there.returncode == 0, there.stderr
    here = place.call(
        *(
            "launch",
            recipe,
            "--on",
            "local",
            "--run",
            f"{run}-here",
            "--storage",
            str(place.folder / "here"),
            "--json",
        ),
        *(place.data, f"strategy={strategy}"),
    )
    assert here.returncode == 0, here.stderr
    one, other = document(there.stdout), document(here.stdout)
    assert one["step"] == other["step"] == (40 if recipe == "lm-tiny" else 200)
    assert losses(one) == losses(other)
    assert one["metrics"]["test/loss"] == pytest.approx(other["metrics"]["test/loss"], abs=1e-6)
    assert Path(one["report"]).is_file()
    place.clean()


@pytest.mark.slow  # test_sky has the same with the same archive
def test_a_workload_edited_in_a_scratch_folder_runs_without_an_image_build(place: Place) -> None:
    recipe = write_page(place.folder / "scratch", unit="as written")
    source = recipe.parent / "spirals.py"
    launch = (
        *("launch", str(recipe), "--on", "kuberay", *place.reached(), "--storage", f"{place.store.url}/runs"),
        *("--run", "edited", "--code", str(recipe.parent), "--workload-check", "always"),
        *("--json", *SMALL, *FEW_STEPS),
    )
    # pytest is installed on this machine and not in the image.
    source.write_text("import pytest\n" + source.read_text())
    lacking = place.call(*launch)
    assert lacking.returncode == 2, lacking.stderr
    assert f"(checked in the image {LOCAL})" in lacking.stderr
    assert "No module named 'pytest'" in lacking.stderr
    assert "spirals.py:1: in <module>: import pytest" in lacking.stderr
    assert not place.names("rayjob,raycluster")
    write_page(place.folder / "scratch", unit="as edited")
    done = place.call(*launch)
    assert done.returncode == 0, done.stderr
    record = json.loads((place.folder / "runs" / "edited" / "run.json").read_text())
    assert record["unit"] == "as edited"
    digest = record["launches"][-1]["code"]["digest"]
    assert [start["code"] for start in record["starts"]] == [digest]
    archive = place.store.folder / "runs" / "runs" / "edited" / "code" / f"{digest}.tar.gz"
    assert archive.is_file()
    place.clean()


@pytest.mark.deep
def test_a_stopped_run_saves_and_resumes(place: Place) -> None:
    with launched(place, "stopped", *LONG) as launch:
        launch.reach(30)
        assert launch.interrupt() == 130, launch.output
        assert "which is saved" in launch.output
        reached = launch.step()
    place.clean()
    again = place.launch("stopped", *LONG, f"steps={reached + 20}", "--allow-change", "steps", "--json")
    assert again.returncode == 0, again.stderr
    assert document(again.stdout)["resumed_from"] >= reached
    place.clean()


@pytest.mark.deep
def test_a_detached_run_can_be_listed_and_attached(place: Place) -> None:
    left = place.launch("alone", "steps=400", "--detach", "--json")
    assert left.returncode == 0, left.stderr
    assert document(left.stdout)["status"] == "detached"
    listed = document(place.call("runs", "list", *place.where, "--json").stdout)["runs"]
    assert [run["run"] for run in listed] == ["alone"]
    twice = place.launch("alone", "steps=400")
    assert (twice.returncode, "already in progress" in twice.stderr) == (2, True)
    # The run folder records where the run was launched.
    back = place.call("runs", "attach", "alone", "--json")
    assert back.returncode == 0, back.stderr
    assert document(back.stdout)["step"] == 400
    assert place.call("runs", "logs", "alone").returncode == 0, "attaching deletes nothing"
    assert place.call("runs", "stop", "alone").returncode == 0
    stored = place.call("runs", "logs", "alone")
    assert stored.returncode == 0, "the RayJob is gone, and the storage has the rows"
    assert "step 400" in " ".join(stored.stdout.split())
    place.clean()

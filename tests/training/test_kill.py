"""A run that is killed with SIGKILL and started again has the same losses, bit for bit, as a run that is not
killed.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launches import Launcher, rows, untimed

pytestmark = [pytest.mark.launch, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("runs"), text_folder, cache)
    yield made
    made.end()


@pytest.fixture(scope="module")
def undisturbed(launcher: Launcher) -> list[dict[str, Any]]:
    """The rows of a run that is not killed."""
    launched = launcher("undisturbed")
    code, _, errors = launched.finish()
    assert code == 0, errors
    found = untimed(launched.run_dir)
    assert [row["step"] for row in found if row["kind"] == "train"] == list(range(1, 25))
    assert found[-1]["kind"] == "test"
    return found


def finish(launcher: Launcher, name: str, on: str = "torchrun") -> list[dict[str, Any]]:
    launched = launcher(name, on=on)
    code, _, errors = launched.finish()
    assert code == 0, errors
    return untimed(launched.run_dir)


@pytest.mark.deep
def test_a_kill_in_a_step_a_save_or_before_the_marker_does_not_change_the_losses(
    launcher: Launcher, undisturbed: list[dict[str, Any]]
) -> None:
    for point in ("in-step:9", "in-save:15", "before-marker:20"):
        launched = launcher("faults", TRAINFLEET_FAULT=point)
        code, _, errors = launched.finish()
        assert code == -signal.SIGKILL, f"{point}: {errors}"
        launched.gone()
    assert finish(launcher, "faults") == undisturbed


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_at_a_random_step_does_not_change_the_losses(
    launcher: Launcher, undisturbed: list[dict[str, Any]], seed: int
) -> None:
    launched = launcher(f"random-{seed}")
    launched.until_step(random.Random(seed).randint(1, 22))
    launched.kill_all()
    assert finish(launcher, f"random-{seed}") == undisturbed


def test_ray_has_the_losses_of_torchrun(launcher: Launcher, undisturbed: list[dict[str, Any]]) -> None:
    assert finish(launcher, "ray-whole", on="local") == undisturbed


@pytest.mark.deep
def test_a_killed_run_on_ray_has_the_losses_of_torchrun(
    launcher: Launcher, undisturbed: list[dict[str, Any]]
) -> None:
    launched = launcher("ray", on="local", TRAINFLEET_FAULT="in-step:13")
    launched.until_step(11)
    assert launched.finish()[0] == -signal.SIGKILL
    launched.gone()
    assert max(row["step"] for row in rows(launched.run_dir)) == 12
    assert finish(launcher, "ray", on="local") == undisturbed


@pytest.mark.deep
def test_a_kill_does_not_change_the_losses_of_one_worker(launcher: Launcher) -> None:
    whole = launcher("alone-whole", "scaling.workers=1")
    assert whole.finish()[0] == 0
    cut = launcher("alone", "scaling.workers=1", TRAINFLEET_FAULT="in-step:18")
    assert cut.finish()[0] == -signal.SIGKILL
    cut.gone()
    assert launcher("alone", "scaling.workers=1").finish()[0] == 0
    assert untimed(cut.run_dir) == untimed(whole.run_dir)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
def test_a_kill_at_one_of_ten_random_steps_does_not_change_the_losses(
    launcher: Launcher, undisturbed: list[dict[str, Any]], seed: int
) -> None:
    name = f"deep-{seed}"
    launched = launcher(name)
    launched.until_step(random.Random(100 + seed).randint(1, 23))
    launched.kill_all()
    assert finish(launcher, name) == undisturbed


@pytest.mark.deep
def test_ten_kills_of_one_run_do_not_change_the_losses(
    launcher: Launcher, undisturbed: list[dict[str, Any]]
) -> None:
    rng = random.Random(5)
    for step in sorted(rng.sample(range(1, 24), 10)):
        launched = launcher("often")
        launched.until_step(step)
        launched.kill_all()
    assert finish(launcher, "often") == undisturbed

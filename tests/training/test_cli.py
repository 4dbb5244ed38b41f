"""The command line of training: an error is one clear message with an exit code, and no data is lost."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.launches import Launcher, rows
from trainfleet.training.cli.outcome import closing_lines
from trainfleet.training.launch.supervise import Outcome

Command = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def launcher(tmp_path: Path, text_folder: Path, cache: Path) -> Launcher:
    return Launcher(tmp_path / "runs", text_folder, cache)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "lm-tinny"], "did you mean `lm-tiny`?"),
        (["train", "lm-tiny", "optimizer.lrr=1"], "did you mean `lr`?"),
        (["train", "lm-tiny", "optimizer.lr"], "write key=value"),
        (["train", "BAD.yaml"], "the recipe is not valid YAML"),
        (["launch", "lm-tiny", "--on", "torchrunn"], "did you mean `torchrun`?"),
        (["launch", "lm-tiny", "--on", "sky"], "a folder of this machine, which pods do not have"),
        (["launch", "lm-tiny", "scaling.workers=512", "batch.global_batch=2048"], "this machine has"),
        (
            ["launch", "lm-tiny", "--on", "torchrun", "scaling.workers=512", "batch.global_batch=2048"],
            "this machine has",
        ),
        (["launch", "lm-tiny", "scaling.use_gpu=true"], "GPUs"),
        (["launch", "lm-tiny", "--platform", "nowhere.json"], "nowhere.json: there is no such file"),
        (["launch", "lm-tiny", "--storage", "s4://bucket/runs"], "begins with s4://"),
        (
            ["launch", "lm-tiny", "--storage", "s3://b?key=secret/runs"],
            "pass keys and tokens in environment variables",
        ),
        (["report", "runs/no-such-run"], "no such run"),
    ],
)
def test_invalid_input_is_one_message_and_leaves_no_files(
    trainfleet: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "BAD.yaml").write_text("name: [unclosed\n")
    before = sorted(tmp_path.iterdir())
    done = trainfleet(*arguments, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_all_mistakes_of_a_recipe_are_reported_at_once(trainfleet: Command, tmp_path: Path) -> None:
    done = trainfleet("train", "lm-tiny", "optimizer.lrr=1", "stepz=3", "seed=-1", cwd=tmp_path)
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("`lr`", "`steps`", "seed"))


@pytest.mark.parametrize("storage", ["blocked/runs", "/proc/trainfleet-runs"])
def test_a_folder_that_is_not_writable_is_one_message(
    trainfleet: Command, tmp_path: Path, storage: str
) -> None:
    (tmp_path / "blocked").write_text("a file, not a folder")
    done = trainfleet("train", "lm-tiny", "--storage", storage, cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot write the run's folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.launch
@pytest.mark.deep
def test_a_damaged_checkpoint_is_skipped_with_a_message_and_only_damaged_ones_are_an_error(
    launcher: Launcher,
) -> None:
    first = launcher(
        "damaged", "scaling.workers=1", "steps=8", "validation.every=8", "checkpoint.every=4", "--json"
    )
    code, stdout, errors = first.finish()
    assert code == 0, errors
    folders = sorted((first.run_dir / "checkpoints").glob("step-*"))
    assert [folder.name for folder in folders] == ["step-00000004", "step-00000008"]
    state = folders[-1] / "__0_0.distcp"
    state.write_bytes(state.read_bytes()[:-7])
    (first.run_dir / "run.json").unlink()  # as if the process was killed before it recorded the end
    code, stdout, errors = launcher(
        "damaged", "scaling.workers=1", "steps=8", "validation.every=8", "checkpoint.every=4"
    ).finish()
    assert code == 0, errors
    assert "fallback: " in stdout
    assert "step-00000008" in stdout
    for folder in sorted((first.run_dir / "checkpoints").glob("step-*")):
        (folder / "__0_0.distcp").write_bytes(b"nothing")
    (first.run_dir / "run.json").unlink()
    before = rows(first.run_dir)
    code, stdout, errors = launcher(
        "damaged", "scaling.workers=1", "steps=8", "validation.every=8", "checkpoint.every=4"
    ).finish()
    assert code == 1
    assert "no checkpoint of this run can be read" in errors
    assert "Traceback" not in errors + stdout
    assert rows(first.run_dir) == before


@pytest.mark.launch
@pytest.mark.deep
def test_a_full_disk_is_one_message_and_no_data_is_lost(launcher: Launcher) -> None:
    """A limit on the size of files simulates the full disk: the rows fit, a checkpoint does not. Step 5 is
    saved before.
    """
    plain = ("scaling.workers=1", "steps=12", "log.tensorboard=false")
    killed = launcher("full", *plain, TRAINFLEET_FAULT="before-marker:10")
    assert killed.finish()[0] == -signal.SIGKILL
    killed.gone()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        full = launcher("full", *plain)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    code, stdout, errors = full.finish()
    assert code == 1
    assert "cannot save the checkpoint of step 10" in errors
    assert "the last good checkpoint is" in errors
    assert "Traceback" not in errors + stdout
    code, stdout, errors = launcher("full", *plain, "--json").finish()
    assert code == 0, errors
    assert json.loads(stdout)["resumed_from"] == 5


@pytest.mark.launch
@pytest.mark.deep
def test_step_lines_are_short_and_the_last_line_names_the_baseline(launcher: Launcher) -> None:
    code, stdout, errors = launcher("lines", "scaling.workers=1", "steps=2", "validation.every=2").finish()
    assert code == 0, errors
    lines = stdout.splitlines()
    assert lines[0].startswith("step 1/2  loss ")
    assert all(word in lines[0] for word in ("lr ", "tok/s", "wait ", "left "))
    assert any(line.startswith("finished 2 steps in") for line in lines)
    assert any("bigram model's" in line for line in lines)
    assert lines[-1].startswith("report ")


def test_the_last_line_compares_the_run_with_the_baseline() -> None:
    document = {
        "step": 3,
        "seconds": 8.0,
        "resumed_from": 2,
        "checkpoint": None,
        "report": None,
        "metrics": {"validation/nats_per_byte": 2.25},
    }
    better = closing_lines(Outcome(Path("r"), document | {"baseline": {"bigram_nats_per_byte": 2.5}}))
    worse = closing_lines(Outcome(Path("r"), document | {"baseline": {"bigram_nats_per_byte": 2.0}}))
    assert better[0] == "finished 3 steps in 8s, resumed from step 2"
    assert better[1] == "validation 2.2500 nats per byte, 0.2500 below a bigram model's 2.5000"
    assert worse[1] == "validation 2.2500 nats per byte, 0.2500 above a bigram model's 2.0000"


@pytest.mark.parametrize("command", ["train", "launch", "report"])
def test_help_has_examples_and_exit_codes_and_imports_neither_torch_nor_ray(
    trainfleet: Command, command: str
) -> None:
    done = trainfleet(command, "--help")
    assert done.returncode == 0
    assert f"trainfleet {command} " in done.stdout
    assert "Examples" in done.stdout
    assert "Exit codes" in done.stdout
    code = "import sys, trainfleet.training.cli.launch, trainfleet.training.cli.outcome, trainfleet.training.launch.supervise, trainfleet.training.report; print(json.dumps(sorted({'torch', 'ray', 'pandas'} & set(sys.modules))))"
    loaded = subprocess.run(
        [sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, check=True
    )
    assert json.loads(loaded.stdout) == []

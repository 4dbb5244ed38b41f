"""`trainfleet rehearse` and plain `pulumi` as a user types them: exit codes, one message, and nothing left
behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from trainfleet.rehearsal.engine import build
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project, sandbox
from trainfleet.rehearsal.simulation import provider
from trainfleet.rehearsal.simulation.state import Cloud

PROGRAMS = Path(__file__).with_name("programs")
COMMAND = str(Path(sys.executable).with_name("trainfleet"))
Call = Callable[..., subprocess.CompletedProcess[str]]
LIMIT = 120.0


def test_a_mistake_is_one_message_on_stderr_and_exit_code_one(
    trainfleet: Call, program: Callable[[str], Path], engine: Engine
) -> None:
    folder = program('aws.eks.Cluster("c", role_arn="x", vpc_config={"subnet_idz": ["a"]})')
    done = trainfleet("rehearse", str(folder), "--json")
    assert done.returncode == 1
    assert "aws:eks/cluster:Cluster c vpcConfig.subnet_idz" in done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is False
    assert [step["name"] for step in document["steps"] if step["ran"]] == ["check", "preview"]


@pytest.mark.deep
def test_a_quick_look_ends_with_the_step_that_was_named(trainfleet: Call, engine: Engine) -> None:
    done = trainfleet("rehearse", str(PROGRAMS / "small"), "--until", "preview", "--json")
    assert done.returncode == 0, done.stderr
    assert [step["name"] for step in json.loads(done.stdout)["steps"]] == ["check", "preview"]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["no-such-stack"], "unknown stack"),
        (["/proc"], "has no Pulumi.yaml"),
        ([str(PROGRAMS / "small"), "--fault", "some"], "'some' is not known"),
        ([str(PROGRAMS / "small"), "--until", "polices"], "did you mean `policies`?"),
        ([str(PROGRAMS / "small"), "--quota", "eips=2"], "'eips=2' is not TYPE=N"),
        ([str(PROGRAMS / "small"), "--set", "a=b"], "--set changes a platform spec"),
        ([str(PROGRAMS / "small"), "--policy-pack", "/proc"], "has no PulumiPolicy.yaml"),
        ([str(PROGRAMS / "small"), "--resources", "/no/such/folder/x.jsonl"], "its folder does not exist"),
        ([str(PROGRAMS / "small"), "--keep", "/proc/no"], "nowhere to write"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_two(
    trainfleet: Call, engine: Engine, arguments: list[str], output: str
) -> None:
    done = trainfleet("rehearse", *arguments)
    assert done.returncode == 2, done.stderr
    assert output in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_leaves_no_process_and_no_folder(engine: Engine, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [COMMAND, "rehearse", str(PROGRAMS / "small")],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    family: list[psutil.Process] = []
    end = time.monotonic() + LIMIT
    while not {"pulumi", "python"} <= {name.split("3")[0] for name in _names(family)}:
        assert time.monotonic() < end
        assert child.poll() is None, child.communicate()
        family = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGINT)
    _, output = child.communicate(timeout=LIMIT)
    assert child.returncode == 130, output
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def _names(family: list[psutil.Process]) -> set[str]:
    names = set()
    for process in family:
        try:
            names.add(process.name())
        except psutil.NoSuchProcess:
            continue
    return names


@pytest.mark.deep
def test_two_rehearsals_at_once_do_not_meet(
    engine: Engine, tmp_path: Path, program: Callable[[str], Path]
) -> None:
    folder = program('aws.s3.Bucket("b", tags={"a": "b"})')
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    both = [
        subprocess.Popen(
            [COMMAND, "rehearse", str(folder), "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    done = [process.communicate(timeout=LIMIT) for process in both]
    assert [process.returncode for process in both] == [0, 0], done
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("trainfleet")] == []


@pytest.mark.deep
def test_a_rehearsal_changes_no_file_of_the_program(
    engine: Engine, trainfleet: Call, program: Callable[[str], Path]
) -> None:
    folder = program('aws.s3.Bucket("b", tags={"a": pulumi.Config().require_secret("token")})')
    (folder / "Pulumi.dev.yaml").write_text("config:\n  tiny:token:\n    secure: v1:abcdef:ghijkl\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = trainfleet("rehearse", str(folder), "--stack", "dev")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_plain_pulumi_previews_a_stack_from_the_checkout(engine: Engine, root: Path, tmp_path: Path) -> None:
    """As a user would: `pulumi preview -s aws-dev` with the host next to the engine; only the providers are
    simulated.
    """
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(root / "Pulumi.yaml", checkout)
    shutil.copytree(root / "stacks", checkout / "stacks")
    shutil.copytree(root / "policies", checkout / "policies")
    (checkout / ".venv").symlink_to(sys.prefix)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    os.link(
        engine.path, bin_folder / "pulumi"
    ) if engine.path.stat().st_dev == bin_folder.stat().st_dev else shutil.copy(
        engine.path, bin_folder / "pulumi"
    )
    build.write_shims(bin_folder)
    with sandbox(read_project(checkout, "aws-dev")) as box, provider.serve(Cloud()) as providers:
        environment = box.environment | {
            "PULUMI_DEBUG_PROVIDERS": providers,
            "PATH": f"{bin_folder}:/usr/bin:/bin",
        }
        environment.pop("VIRTUAL_ENV", None)

        def pulumi(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["pulumi", *arguments],
                cwd=checkout,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )

        assert pulumi("stack", "init", "aws-dev").returncode == 0
        done = pulumi("preview", "-s", "aws-dev", "--non-interactive", "--policy-pack", "policies")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dev-vpc" in done.stdout
    assert "to create" in done.stdout

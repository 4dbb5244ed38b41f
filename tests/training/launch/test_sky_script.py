"""The script of a task runs in processes as it does in SkyPilot's pods."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.training.launch.sky_tasks import document, recipe, resolved
from tests.training.launches import wait_for
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.pods import ASK_IDLE, IDLE, STOP_FILE

RAY = """echo "ray $*" >> "$NOTES"
trap 'echo "ray ended" >> "$NOTES"; exit 0' TERM
eval "${RAY_DOES:-echo Ray runtime started.; while true; do sleep 0.1; done}" """


TRAINING = 'echo "python $* at $RAY_ADDRESS tls=${RAY_USE_TLS:-}" >> "$NOTES"; cp recipe.yaml "$NOTES.recipe"; eval "${TRAINS:-}"'


class Pods:
    """The pods of one test. They all end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, script: str, *, rank: int, code: int = 0, **variables: str) -> subprocess.Popen[str]:
        """Run the script of the task as a pod does, with stubs for Ray and the training that record their
        calls.
        """
        home, tools = self.folder / f"home{rank}", self.folder / "tools"
        notes = str(self.folder / f"notes{rank}")
        for each in (home, tools):
            each.mkdir(parents=True, exist_ok=True)
        programs = {tools / "ray": RAY, tools / "python": f"{TRAINING}; exit {code}"}
        for file, text in programs.items():
            file.write_text(f"#!/bin/bash\n{text}\n")
            file.chmod(0o755)
        env = {
            "HOME": str(home),
            "PATH": f"{tools}:/usr/bin:/bin",
            "NOTES": notes,
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
            **variables,
        }
        process = subprocess.Popen(
            ["bash", "-c", script],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End each script and everything that it started, as SkyPilot does at the end of a task."""
        for process in self._started:
            # A script that has exited leaves `ray start` in its process group, so end the group even if
            # the script itself is gone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Starts pods, and ends them after the test."""
    started = Pods(tmp_path)
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize("code", [0, 2, 137])
def test_the_first_pod_trains_and_its_exit_code_is_returned(tmp_path: Path, pods: Pods, code: int) -> None:
    found = recipe("workload.data.source=\"a 'quoted' $HOME `x` \\\\ folder\"")
    script = document(found, "aws-prod")["run"]
    first = pods.start(
        script,
        rank=0,
        code=code,
        TRAINFLEET_RAY_SETTINGS="RAY_USE_TLS=1 RAY_TLS_CA_CERT=/x",
        SKYPILOT_NUM_GPUS_PER_NODE="8",
    )
    output = first.communicate(timeout=60)[0]
    assert first.returncode == code, output
    assert json.loads(output.splitlines()[-1]) == {"kind": "exit", "code": code}
    notes = (tmp_path / "notes0").read_text().splitlines()
    assert notes[0].startswith("ray start --head --port=6379"), notes
    assert {"--block", "--num-cpus=33", "--num-gpus=8"} <= set(notes[0].split())
    assert notes[1:] == ["python -m trainfleet.training.run recipe.yaml at 127.0.0.1:6379 tls=1", "ray ended"]
    assert yaml.safe_load((tmp_path / "notes0.recipe").read_text()) == found.model_dump(mode="json")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_start_of_ray_is_reported_with_its_output(pods: Pods, rank: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        script = with_port(document(recipe(), "aws-prod")["run"])
        failed = pods.start(
            script, rank=rank, RAY_DOES="echo no space for it; exit 3", PORT=str(head.getsockname()[1])
        )
        output = failed.communicate(timeout=60)[0]
    assert failed.returncode == 1
    assert "no space for it" in output
    assert "Ray did not start" in output


@pytest.mark.parametrize(("agent", "head_s"), [({}, 120), ({"AGENT": "1"}, 0)], ids=["agent", "time"])
def test_another_pod_runs_until_the_head_is_gone(
    tmp_path: Path, pods: Pods, agent: dict[str, str], head_s: int
) -> None:
    script = with_port(document(recipe(), "aws-prod")["run"], head_s=head_s)
    with socket.create_server(("127.0.0.1", 0)) as head:
        other = pods.start(script, rank=1, PORT=str(head.getsockname()[1]), **agent)
        for _ in range(3):
            head.accept()[0].close()
        assert other.poll() is None
    assert other.wait(timeout=60) == 0
    notes = (tmp_path / "notes1").read_text()
    assert notes.startswith("ray start --address=127.0.0.1:")
    assert "python" not in notes


SLOW_ONCE = """mkdir "$NOTES.slow" 2>/dev/null && exit 1
echo Ray runtime started.; while true; do sleep 0.1; done"""
"""A node of Ray that ends before it is complete, and is complete the next time."""


def test_a_head_whose_agent_was_slow_is_started_again(tmp_path: Path, pods: Pods) -> None:
    script = with_port(document(recipe(), "aws-prod")["run"], agent_s=0)
    first = pods.start(script, rank=0, PORT="1", RAY_DOES=SLOW_ONCE)
    assert first.wait(timeout=60) == 0
    notes = [" ".join(line.split()[:3]) for line in (tmp_path / "notes0").read_text().splitlines()]
    assert notes == ["ray start --head"] * 2 + ["python -m trainfleet.training.run", "ray ended"]


def test_another_pod_whose_agent_was_slow_starts_again(tmp_path: Path, pods: Pods) -> None:
    script = with_port(document(recipe(), "aws-prod")["run"], agent_s=0)
    with socket.create_server(("127.0.0.1", 0)) as head:
        other = pods.start(script, rank=1, PORT=str(head.getsockname()[1]), RAY_DOES=SLOW_ONCE)
        wait_for(lambda: starts(tmp_path) == 2, "Ray starts again")
        assert other.poll() is None
    assert other.wait(timeout=60) == 0


def test_another_pod_joins_the_head_that_is_started_again(tmp_path: Path, pods: Pods) -> None:
    script = with_port(document(recipe(), "aws-prod")["run"])
    with socket.create_server(("127.0.0.1", 0)) as head, socket.socket() as agent:
        agent.bind(("127.0.0.1", 0))  # of the head; nothing listens yet
        address = head.getsockname()
        ports = {"PORT": str(address[1]), "AGENT": str(agent.getsockname()[1])}
        other = pods.start(script, rank=1, **ports)
        wait_for(lambda: starts(tmp_path) == 1, "Ray starts")
        head.close()
        notes = tmp_path / "notes1"
        wait_for(lambda: "ray ended" in notes.read_text(), "Ray ends with the head")
        with socket.create_server(address):
            wait_for(lambda: starts(tmp_path) == 2, "Ray joins the second head")
            agent.listen()
            wait_for(lambda: agent.accept()[0].close() is None, "the head is complete")
            assert other.poll() is None
    assert other.wait(timeout=60) == 0
    assert [line.split()[1] for line in notes.read_text().splitlines()][:3] == ["start", "ended", "start"]


def starts(folder: Path) -> int:
    """How often the second pod has started Ray."""
    notes = folder / "notes1"
    return notes.read_text().count("ray start") if notes.exists() else 0


def test_a_node_of_ray_that_ends_later_fails_the_task(pods: Pods) -> None:
    script = with_port(document(recipe(), "aws-prod")["run"], agent_s=0)
    with socket.create_server(("127.0.0.1", 0)) as head:
        ends = "echo Ray runtime started.; echo out of memory; exit 1"
        other = pods.start(script, rank=1, PORT=str(head.getsockname()[1]), RAY_DOES=ends)
        output = other.communicate(timeout=60)[0]
    assert other.returncode == 1
    assert "out of memory" in output


def with_port(script: str, agent_s: int = 15, head_s: int = 120) -> str:
    """The script with other ports for the head and its agent, and shorter times."""
    changes = {
        "/6379": "/$PORT",
        ":6379": ":$PORT",
        "/52366": "/${AGENT:-$PORT}",
        "sleep 2": "sleep 0.1",
        "-ge 15 ": f"-ge {agent_s} ",
        "-ge 120 ": f"-ge {head_s} ",
    }
    for old, new in changes.items():
        script = script.replace(old, new)
    return script


def test_pods_get_the_certificate_authority_of_a_private_store_and_no_key(tmp_path: Path, pods: Pods) -> None:
    certificate = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"
    (tmp_path / "ca").write_text(
        f"-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----\n{certificate}\n"
    )
    env = {
        "TRAINFLEET_S3_ENDPOINT": "https://10.0.0.1:9000",
        "AWS_CA_BUNDLE": str(tmp_path / "ca"),
        "AWS_SECRET_ACCESS_KEY": "planted",
    }
    request = Request(
        "lm-small",
        options=SkyOptions(context="kind", namespace="mine", image="my/image:1", from_secrets=("s3-keys",)),
    )
    made = resolved(recipe(name="lm-small"), Target(request, (), tmp_path), env).task
    assert made["envs"]["TRAINFLEET_S3_ENDPOINT"] == "https://10.0.0.1:9000"
    assert certificate in made["run"]
    container = made["resources"]["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"][
        "containers"
    ][0]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-keys"}}]
    assert "planted" not in json.dumps(made)
    done = pods.start(made["run"], rank=0)
    assert done.wait(timeout=60) == 0
    assert (tmp_path / "home0" / "trainfleet" / "ca.crt").read_text().strip() == certificate


@pytest.fixture
def kept(tmp_path: Path, pods: Pods) -> Iterator[SharedPods]:
    """Runs on pods that outlive them. Their Ray is ended after the test, as a deleted pod ends it."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        yield SharedPods(tmp_path, pods, str(head.getsockname()[1]))
    for file in tmp_path.glob("home*/.trainfleet/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


LAUNCHED = {"AWS_REGION": "", "TRAINFLEET_CODE": "", "RAY_AUTH_TOKEN": ""}
"""The names of a task's variables."""


@dataclass
class SharedPods:
    """The pods of a SkyPilot cluster that outlives its runs; `port` is that of Ray's head, which answers."""

    folder: Path
    pods: Pods
    port: str
    agent_s: int = 15

    def run(self, rank: int = 0, **variables: str) -> str:
        """A run's script on one pod, to its end; the output."""
        process = self.start(rank, **variables)
        output = process.communicate(timeout=60)[0]
        assert process.returncode == 0, output
        return output

    def start(self, rank: int = 0, **variables: str) -> subprocess.Popen[str]:
        given = {"AWS_REGION": "here", "RAY_TMPDIR": str(self.folder), "PORT": self.port, **variables}
        script = document(recipe(), "aws-prod", cluster="shared", variables=LAUNCHED)["run"]
        script = (
            with_port(script, self.agent_s)
            .replace("--wait 30", "--wait 0.2")
            .replace(STOP_FILE, str(self.stop_file))
        )
        return self.pods.start(script, rank=rank, **given)

    @property
    def stop_file(self) -> Path:
        """What is touched to stop a run."""
        return self.folder / "stop"

    def idle(self) -> bool:
        """What the launcher sees of the head."""
        env = {"HOME": str(self.folder / "home0"), "PATH": "/usr/bin:/bin"}
        return IDLE in subprocess.check_output(["bash", "-c", ASK_IDLE], env=env, text=True)

    def notes(self, rank: int = 0) -> list[str]:
        """What the stubs of a pod recorded: the first two words."""
        lines = (self.folder / f"notes{rank}").read_text().splitlines()
        return [" ".join(line.split()[:2]) for line in lines]


def test_a_pod_that_outlives_its_runs_takes_one_at_a_time_and_keeps_nothing(
    tmp_path: Path, kept: SharedPods
) -> None:
    old = tmp_path / "home0" / "trainfleet" / "checkpoint-of-another-run"
    session = tmp_path / "ray" / "session_1"
    for each in (old, session):
        each.mkdir(parents=True)
    first = kept.start(RAY_DOES="sleep 60")
    wait_for(lambda: not old.exists() and not session.exists(), "the leftovers are deleted")
    assert not kept.idle()
    second = kept.start()
    assert "another run is using this pod" in second.communicate(timeout=60)[0]
    assert (second.returncode, first.poll()) == (1, None)
    os.killpg(first.pid, signal.SIGKILL)
    wait_for(kept.idle, "the pod is free for the next run")


def test_a_later_run_uses_the_ray_of_the_run_before(kept: SharedPods) -> None:
    for token in ("one", "two", "three"):
        kept.run(RAY_AUTH_TOKEN=token, TRAINFLEET_CODE=f"s3://code/{token}")
    assert kept.notes() == ["ray start", "python -m", "python -m", "python -m"]


@pytest.mark.parametrize(
    "changed", [{"AWS_REGION": "elsewhere"}, {"SKYPILOT_NODE_IPS": "localhost\n127.0.0.2"}]
)
def test_ray_is_started_again_if_its_processes_would_inherit_something_else(
    kept: SharedPods, changed: dict[str, str]
) -> None:
    kept.run()
    kept.run(**changed)
    assert kept.notes() == ["ray start", "python -m", "ray ended", "ray start", "python -m"]


def test_a_ray_that_has_ended_is_started_again_with_the_token_of_the_other_pods(kept: SharedPods) -> None:
    kept.run(RAY_AUTH_TOKEN="first")
    os.killpg(int((kept.folder / "home0" / ".trainfleet" / "pid").read_text()), signal.SIGKILL)
    does = (
        'echo "token $RAY_AUTH_TOKEN" >> "$NOTES"; echo Ray runtime started.; while true; do sleep 0.1; done'
    )
    kept.run(RAY_AUTH_TOKEN="second", RAY_DOES=does)
    assert kept.notes() == ["ray start", "python -m", "ray start", "token first", "python -m"]


@pytest.mark.deep
def test_a_failed_start_of_a_ray_that_outlives_its_runs_is_reported_with_its_output(kept: SharedPods) -> None:
    failed = kept.start(RAY_DOES="echo no space for it; exit 3")
    output = failed.communicate(timeout=60)[0]
    assert failed.returncode == 1
    assert "no space for it" in output
    assert "Ray did not start" in output


def test_a_head_that_outlives_its_runs_is_started_again_if_its_agent_was_slow(kept: SharedPods) -> None:
    kept.agent_s = 0
    kept.run(RAY_DOES=SLOW_ONCE)
    assert kept.notes() == ["ray start", "ray start", "python -m"]


def test_another_pod_leaves_its_node_to_the_cluster_and_ends(kept: SharedPods) -> None:
    assert "exit" not in kept.run(rank=1)
    wait_for((kept.folder / "notes1").exists, "Ray starts")
    assert (kept.folder / "notes1").read_text().startswith("ray start --address=127.0.0.1:")


def test_ray_outlives_what_skypilot_ends_with_a_script(kept: SharedPods) -> None:
    """SkyPilot ends every process that it saw below the script. Here it sees all of them, because `setsid` is
    slow to exit.
    """
    tools = kept.folder / "tools"
    tools.mkdir()
    slow = '#!/bin/bash\nshift\n/usr/bin/setsid "$@" &\nsleep 0.5\n'
    (tools / "setsid").write_text(slow)
    (tools / "setsid").chmod(0o755)
    script = kept.start(rank=1)
    process, seen = psutil.Process(script.pid), set()
    while script.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            seen |= set(process.children(recursive=True))
    assert script.returncode == 0
    for each in seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.terminate()
    psutil.wait_procs(seen, timeout=10)
    ray = psutil.Process(int((kept.folder / "home1" / ".trainfleet" / "pid").read_text()))
    assert ray.is_running()
    assert ray.status() != psutil.STATUS_ZOMBIE
    wait_for(lambda: "ray ended" not in kept.notes(1) and kept.notes(1), "Ray starts")


def test_a_request_to_stop_reaches_the_run_and_not_the_next(kept: SharedPods) -> None:
    """The request touches one name on every pod (sky/pods.py); ranks look for the file of their run."""
    seen = 'echo "stop $(test -e "$TRAINFLEET_STOP_FILE" && echo asked)" >> "$NOTES"'
    touched = f"touch {kept.stop_file}; {seen}"
    for task, does in (("one", touched), ("two", seen)):
        kept.run(SKYPILOT_TASK_ID=task, TRAINS=does)
    assert [line for line in kept.notes() if line.startswith("stop")] == ["stop asked", "stop"]

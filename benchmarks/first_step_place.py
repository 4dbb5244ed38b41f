"""The place of `benchmarks.first_step`: the local cluster with a store, a workload in a scratch folder, and
SkyPilot's files in a home of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.infra.kubernetes.access import CLUSTER_RULES, LAUNCHER_RULES, POD_RULES, Rule
from trainfleet.local_cluster import state
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.store import gateway, grant_access
from trainfleet.process import every_process
from trainfleet.training.launch.platform_outputs import external_cluster

CLUSTER = "firststep"
NAMESPACE = "first-step"
KEYS = ("trainfleet", "a-secret-of-this-benchmark")
WARM = "warm"
"""The cluster of each launcher that outlives its runs."""
LIMIT_S = 900.0
PAGE = Path(__file__).parents[1] / "docs" / "add-a-workload.md"
CHANGES = (
    *("steps=3", "optimizer.warmup=1", "log.every=1", "validation.every=3", "checkpoint.every=3"),
    *("log.tensorboard=false", "scaling.workers=2", "scaling.cpus_per_worker=0.25"),
)
STAMPED = """
import json, sys, time
from trainfleet.training.runtime import progress

class Stamped(progress.Lines):
    def handle(self, event):
        fields = {key: event.get(key) for key in ("kind", "text", "what", "rank", "step")}
        print("@ " + json.dumps({"at": time.time(), **fields}), flush=True)

progress.display = lambda json: Stamped()
from trainfleet.cli import main
sys.exit(main())
"""
"""The command line, whose display prints every event with its time."""


@dataclass(frozen=True)
class Place:
    """What is launched, and where."""

    folder: Path
    cluster: state.State
    env: dict[str, str]
    url: str

    @property
    def recipe(self) -> Path:
        return self.folder / "scratch" / "spirals.yaml"

    def edit(self, text: str) -> None:
        """Write the workload of docs/add-a-workload.md with a change that makes another archive of it."""
        page = PAGE.read_text(encoding="utf-8")
        source, recipe = (page.split(f"```{kind}\n")[1].partition("```")[0] for kind in ("python", "yaml"))
        self.recipe.parent.mkdir(exist_ok=True)
        self.recipe.with_suffix(".py").write_text(f"# {text}\n{source}", encoding="utf-8")
        self.recipe.write_text(recipe, encoding="utf-8")

    def launch(self, launcher: str, run: str) -> Timed:
        """Launch the edited workload on the warm cluster of a launcher, and wait for its end."""
        options = {
            "kuberay": ["--context", self.cluster.context, "--namespace", NAMESPACE, "--image", LOCAL],
            "sky": ["--stack", "platform.json", "--nodes", "2"],
        }[launcher]
        arguments = ["launch", str(self.recipe), "--on", launcher, *options, "--from-secret", "s3-keys"]
        arguments += ["--storage", f"{self.url}/runs", "--run", run, "--code", str(self.recipe.parent)]
        return self.timed(sys.executable, "-c", STAMPED, *arguments, "--cluster", WARM, *CHANGES)

    def timed(self, *command: str, enough: Callable[[str], bool] = lambda _: False) -> Timed:
        """Run a command; its lines with the time of each. `enough`: the last line that is of interest."""
        began = time.time()
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        found = Timed(began, [])
        assert process.stdout is not None
        stopped = False
        for line in process.stdout:
            found.lines.append((time.time(), line.rstrip("\n")))
            if enough(line):
                stopped = True
                os.killpg(process.pid, signal.SIGTERM)
                break
        process.stdout.close()
        if process.wait(LIMIT_S) and not stopped:
            last = [Problem("", text) for _, text in found.lines[-5:]]
            raise TrainfleetError(f"{' '.join(command[:3])[:60]} failed", last)
        return found

    def delete_warm(self, launcher: str) -> None:
        """Delete a launcher's cluster, whose pods leave no CPU for those of the next one."""
        if launcher == "kuberay":
            given = ("-n", NAMESPACE, "delete", "raycluster", WARM, "--wait", "--cascade=foreground")
            kubectl(self.cluster, *given)
        else:
            self.timed(str(Path(sys.executable).with_name("sky")), "down", "--yes", WARM)

    def pods(self, selector: str) -> list[str]:
        """The names of pods."""
        given = ("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}")
        return kubectl(self.cluster, *given).stdout.split()


@dataclass(frozen=True)
class Timed:
    """A command's lines, each with the time at which it came."""

    began: float
    lines: list[tuple[float, str]]

    def events(self) -> list[dict[str, Any]]:
        """The events that STAMPED printed."""
        return [json.loads(text[2:]) for _, text in self.lines if text.startswith("@ ")]

    def until(self, pattern: str) -> float:
        """Seconds until a line."""
        for at, text in self.lines:
            if re.search(pattern, text):
                return at - self.began
        raise TrainfleetError(f"no line with {pattern!r}", [Problem("", text) for _, text in self.lines[-5:]])


def accounts() -> list[dict[str, Any]]:
    """The accounts of a platform's namespace, with the rights that a stack grants."""

    def made(kind: str, name: str, api: str = "v1", **more: Any) -> dict[str, Any]:
        namespace = {} if kind.startswith("Cluster") else {"namespace": NAMESPACE}
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **namespace}, **more}

    def rules(these: tuple[Rule, ...]) -> list[dict[str, Any]]:
        return [{"apiGroups": [group], "resources": each, "verbs": verbs} for group, each, verbs in these]

    def bound(kind: str, role: str, account: str) -> dict[str, Any]:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        return {"subjects": [subject], "roleRef": reference}

    api, everywhere = "rbac.authorization.k8s.io/v1", f"{NAMESPACE}-launcher"
    return [
        made("ServiceAccount", "launcher"),
        made("ServiceAccount", "trainer", automountServiceAccountToken=False),
        made("Role", "launcher", api, rules=rules(LAUNCHER_RULES)),
        made("RoleBinding", "launcher", api, **bound("Role", "launcher", "launcher")),
        made("Role", "trainer", api, rules=rules(POD_RULES)),
        made("RoleBinding", "trainer", api, **bound("Role", "trainer", "trainer")),
        made("ClusterRole", everywhere, api, rules=rules(CLUSTER_RULES)),
        made("ClusterRoleBinding", everywhere, api, **bound("ClusterRole", everywhere, "launcher")),
    ]


def _call(env: dict[str, str], folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "trainfleet", *arguments]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [Problem("", line) for line in done.stderr.splitlines()[-5:]]
        raise TrainfleetError(f"trainfleet {' '.join(arguments[:2])} failed", last)


@contextlib.contextmanager
def place(name: str, launchers: Sequence[str]) -> Iterator[Place]:
    """The place, for the duration of the block. Nothing of it is left afterwards.

    Args:
        name: a cluster that runs; empty: one that is started, and deleted afterwards.
        launchers: those that will be measured.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the callbacks below run
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
    with (
        tempfile.TemporaryDirectory(prefix="trainfleet-first-step-") as text,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(text)
        if not name:
            stack.callback(_call, dict(env), folder, "cluster", "down", "--name", CLUSTER)
            _call(env, folder, "cluster", "up", "--name", CLUSTER)
        cluster = state.load(name or CLUSTER)
        if cluster is None:
            raise TrainfleetError(f"there is no cluster {name}", [Problem("", "trainfleet cluster up")])
        (folder / "store").mkdir()
        store = stack.enter_context(gateway(str(cluster.host_address), folder / "store", KEYS))
        if name:
            stack.callback(
                kubectl, cluster, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false"
            )
        grant_access(cluster, NAMESPACE, store)
        env |= store.environment | {"KUBECONFIG": str(cluster.kubeconfig)}
        env["PATH"] += f":{cluster.file('bin')}"
        here = Place(folder, cluster, env, store.url)
        if "sky" in launchers:
            stack.enter_context(_skypilot(here))
        yield here


@contextlib.contextmanager
def _skypilot(here: Place) -> Iterator[None]:
    """SkyPilot's home and API server; the context logs in as a platform's launcher account."""
    kubectl(
        here.cluster,
        "apply",
        "-f",
        "-",
        stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": accounts()}),
    )
    home = here.folder / "home"
    (home / "tmp").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    kubeconfig = home / "access"
    own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    here.env.update(own | {"SKYPILOT_API_SERVER_LOCAL_PORT": port})
    changes = {
        "kubeconfig": _as_json(here.cluster.kubeconfig),
        "service_account": "trainer",
        "launcher_account": "launcher",
    }
    outputs = external_cluster("platform", NAMESPACE, LOCAL, here.url).model_copy(update=changes)
    (here.folder / "platform.json").write_text(outputs.model_dump_json(), encoding="utf-8")
    admin = here.env["KUBECONFIG"]
    here.env["KUBECONFIG"] = str(kubeconfig)
    _call(here.env, here.folder, "sky", "setup", "--stack", "platform.json", "--yes")
    kubeconfig_of_both = f"{kubeconfig}:{admin}"
    here.env["KUBECONFIG"] = kubeconfig_of_both
    try:
        yield
    finally:
        _end_of_home(home)


def _as_json(kubeconfig: Path) -> str:
    import yaml

    return json.dumps(yaml.safe_load(kubeconfig.read_text(encoding="utf-8")))


def _end_of_home(home: Path) -> None:
    """Kill SkyPilot's server and its workers, which outlive the launch that starts them."""
    import psutil

    found: set[psutil.Process] = set()
    for process in every_process():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                found |= {process, *process.children(recursive=True)}
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=30)

"""A canary in every secret: no command prints it, and no file that a command writes contains it.

Each command runs as a user starts it, in an empty folder, with secrets in variables, addresses, states,
recordings and a token's file. What needs a cloud or a cluster shows its error; a run with canaries on a
cluster is in tests/cluster/test_secrets.py.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from trainfleet.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary/Zq7+Xw9=secret"
ADDRESS = f"https://127.0.0.1:9/{urllib.parse.quote(CANARY, safe='')}"
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "AWS_SESSION_TOKEN": CANARY,
    "AZURE_STORAGE_ACCOUNT_KEY": CANARY,
    "AZURE_CLIENT_SECRET": CANARY,
    "HF_TOKEN": CANARY,
    "WANDB_API_KEY": CANARY,
    "PULUMI_ACCESS_TOKEN": CANARY,
    "PULUMI_CONFIG_PASSPHRASE": CANARY,
    "GITHUB_TOKEN": CANARY,
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": CANARY,
    "ACTIONS_ID_TOKEN_REQUEST_URL": "http://127.0.0.1:9/token?",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "HOOK": ADDRESS,
    "SLACK": ADDRESS,
}
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_VALUE = {SIGNATURE: "1b47061264138c4ac30d75fd1eb44270", "plaintext": json.dumps(CANARY)}
NOTIFIED = ("notifications.webhook=HOOK", "notifications.slack=SLACK")
TINY = (
    "workload.data.source=text",
    "workload.data.glob='*.txt'",
    "workload.data.validation_share=0.2",
    "workload.data.test_share=0.2",
    "scaling.workers=1",
    "steps=2",
    "optimizer.warmup=1",
    "log.every=1",
    "publish={gates: {test/loss: {max: 100}}}",
    *NOTIFIED,
)
LAUNCH = ("launch", "lm-tiny", *TINY)
CONTRACT = "contract.json"
AWS_DEV = str(ROOT / "stacks" / "Pulumi.aws-dev.yaml")
KUBERAY = ("--on", "kuberay", "--stack", CONTRACT, "--image", "my/image:1", "--print")
PULL_REQUEST = {"number": 1, "author": {"login": "ada"}, "headRefOid": "0" * 40, "labels": [], "reviews": []}
SEARCH = "tune={trials: 1, space: {optimizer.lr: {choice: [0.001]}}}"
TOKEN = ("--token-file", "token")
DIGEST = "0" * 64
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "init": (("init", "platform", "--cloud", "aws", "--name", "acme", "--owner", "ml@example.com"),),
    "spec": (("spec", "check", "secret.yaml"), ("spec", "check", "secret.yaml", "--json")),
    "machines": (("machines", "--accelerator", "L4", "--json"),),
    "rehearse": (("rehearse", "project", "--stack", "one", "--until", "preview", "--json"),),
    "diff": (
        ("diff", "--events", "recording.json", "--json"),
        ("diff", "--events", "recording.json", "--format", "html", "--output", "diff.html"),
        ("diff", "--events", "recording.json", "--format", "markdown", "--output", "diff.md"),
        ("diff", "--events", "recording.json"),
    ),
    "drift": (("drift", "--events", "recording.json", "--json", "--markdown", "drift.md"),),
    "cost": (("cost", AWS_DEV), ("cost", AWS_DEV, "--json")),
    "preflight": (
        ("preflight", "dev", "--json"),
        ("preflight", "dev", "--offline"),
    ),
    "ci": (
        ("ci", "approval", "pull-request.json"),
        ("ci", "token", "oidc-token"),
        ("ci", "apply", "dev", "--plan", "../plan.json", "--sha256", DIGEST),
        ("ci", "publish", "dev", "--to", "s3://contracts"),
    ),
    "knowledge": (("knowledge", "show", "--json"),),
    "policies": (("policies", "--json"),),
    "data": (("data", "lm-tiny", *TINY, "--json"),),
    "notify": (("notify", "lm-tiny", *TINY),),
    "plan": (("plan", "lm-124m", "--stack", CONTRACT, "--json"),),
    "launch": (
        (*LAUNCH, "--on", "torchrun", "--run", "one", "--json"),
        (*LAUNCH, "--on", "torchrun", "--run", "broken", "workload.data.source=missing"),
        (*LAUNCH, *KUBERAY),
        (*LAUNCH, "--on", "sky", "--stack", CONTRACT, "--secret", "AWS_SECRET_ACCESS_KEY", "--print"),
    ),
    "train": (("train", "lm-tiny", *TINY, "--run", "two"),),
    "tune": (("tune", "lm-tiny", *TINY, SEARCH, "--on", "torchrun", "--run", "search", "--json"),),
    "runs": (
        ("runs", "list", "--storage", "runs", "--json"),
        ("runs", "logs", "one", "--storage", "runs", "--raw"),
        ("runs", "stop", "one", "--storage", "runs"),
    ),
    "report": (("report", "runs/one"),),
    "evaluate": (("evaluate", "runs/one", "--json"),),
    "publish": (("publish", "runs/one", "--to", "published", "--json"),),
    "predict": (("predict", "runs/one", "text/a.txt", "--output", "answers", "--workers", "0", "--json"),),
    "dashboard": (("dashboard", "one"), ("dashboard", "one", "--stack", CONTRACT, "--token")),
    "fabric": (("fabric", "check", "--stack", CONTRACT, "--pool", "l4", "--json"),),
    "sky": (
        ("sky", "setup", "--stack", CONTRACT, "--token-file", "contract=token", "--yes"),
        ("sky", "check", "--stack", CONTRACT, "--quick"),
    ),
    "kubeconfig": (("kubeconfig", "--platform", CONTRACT, *TOKEN, "--output", "kubeconfig", "--json"),),
    "image": (
        ("image", "build", "--stack", CONTRACT, "--checkout", str(ROOT), "--print"),
        ("image", "push", "--stack", CONTRACT, "--checkout", str(ROOT), "--print"),
        ("image", "list", "--registry", "127.0.0.1:9/training"),
    ),
    "cluster": (("cluster", "status", "--json"),),
    "doctor": (("doctor", "--json"),),
}
IN_PLATFORM = ("preflight", "ci apply", "ci publish")
"""Commands that run in the repository that `init` makes."""
SERVING = {
    "serve": ("serve", "runs/one", "--json"),
    "ui": ("ui", "--runs", "runs", "--no-browser", "--json"),
}
"""Commands that run until they are interrupted."""
PAGES = {"serve": ("/healthz", "/metrics"), "ui": ("/", "/cost", "/stacks", "/clusters", "/runs/0/one")}
REFUSED = {"ci": 1, "cluster": 1, "dashboard": 2, "diff": 2, "fabric": 2, "notify": 1}
"""Exit codes of first cases other than 0. Their cloud, cluster, tool or approval does not exist, or they
report what is wrong.
"""
CARRIES_IT = ("token", "kubeconfig", "home/.kube/config")
"""A kubeconfig of the launcher has its token, which is what it is for. Only its user may read it."""


def forms() -> dict[str, str]:
    """The canary as it may appear."""
    raw = CANARY.encode()
    return {
        "plain": CANARY,
        "JSON": json.dumps(CANARY)[1:-1],
        "percent-encoded": urllib.parse.quote(CANARY, safe=""),
        "percent-encoded, without slashes": urllib.parse.quote(CANARY),
        "base64": base64.b64encode(raw).decode(),
        "hex": raw.hex(),
        "a part": "Zq7+Xw9",
    }


def encoded(part: dict[str, object]) -> str:
    """A part of a JSON web token."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def leaks(text: str) -> list[str]:
    """The forms in which a text contains the canary."""
    return [name for name, form in forms().items() if form.casefold() in text.casefold()]


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file below a folder, besides the inputs of the cases."""
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_file() and name not in ("recording.json", "secret.yaml", *CARRIES_IT):
            yield name, file.read_bytes().decode("latin-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the cases read: a text, a project, a recording with a secret, a stack file with one."""
    made = tmp_path_factory.mktemp("canary")
    (made / "text").mkdir()
    for name in "abcdefghijklmnopqrst":
        (made / "text" / f"{name}.txt").write_text(f"{name} quick brown fox jumps over it.\n" * 200)
    (made / "project").mkdir()
    (made / "project" / "Pulumi.yaml").write_text("name: one\nruntime: python\n")
    (made / "project" / "Pulumi.one.yaml").write_text("config: {}\n")
    program = "import os, pulumi\npulumi.export('seen', ' '.join(sorted(os.environ)))\n"
    program += "pulumi.export('values', ' '.join(os.environ.values()))\n"
    (made / "project" / "__main__.py").write_text(program)
    (made / "pull-request.json").write_text(json.dumps(PULL_REQUEST))
    stack = (ROOT / "stacks" / "Pulumi.aws-dev.yaml").read_text(encoding="utf-8")
    (made / "secret.yaml").write_text(stack.replace("config:\n", f"config:\n  aws:secretKey: {CANARY}\n", 1))
    state = {"type": "aws:rds/instance:Instance", "custom": True, "outputs": {}}
    step = {
        "op": "update",
        "urn": "urn:pulumi:dev::test::aws:rds/instance:Instance::db",
        "oldState": {**state, "inputs": {"password": SECRET_VALUE, "engine": "a"}},
        "newState": {
            **state,
            "inputs": {"password": {**SECRET_VALUE, "plaintext": '"other"'}, "engine": "b"},
        },
    }
    (made / "token").write_text(f"{encoded({'alg': 'RS256'})}.{encoded({'exp': 2_000_000_000})}.{CANARY}\n")
    contract = (ROOT / "tests/training/launch/contracts/aws-dev.json").read_text(encoding="utf-8")
    (made / CONTRACT).write_text(re.sub(r"https://\w+\.gr7\.[\w.-]+", "https://127.0.0.1:9", contract))
    (made / "plan.json").write_text("{}")
    (made / "recording.json").write_text(json.dumps({"steps": [step], "changeSummary": {"update": 1}}))
    return made


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("TRAINFLEET")}
    found |= SECRETS | {"TRAINFLEET_CACHE": str(folder / "cache"), "HOME": str(folder / "home")}
    return found | {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}


@dataclass(frozen=True)
class Shown:
    """What a command printed, and its exit code."""

    code: int
    stdout: str
    stderr: str


def called(folder: Path, environment: dict[str, str], arguments: Sequence[str]) -> Shown:
    inside = " ".join(arguments[:2]).startswith(IN_PLATFORM)
    done = subprocess.run(
        [sys.executable, "-m", "trainfleet", *arguments],
        cwd=folder / "platform" if inside else folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Shown(done.returncode, done.stdout, done.stderr)


def served(folder: Path, environment: dict[str, str], arguments: Sequence[str]) -> Shown:
    """Start a command that serves, read its pages, and interrupt it. What it answers is part of its output."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "trainfleet", *arguments, "--port", port],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        head = ""
        while not head.endswith("}\n"):
            head += (line := process.stdout.readline())
            assert line, process.communicate()
        answers = []
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True, timeout=60) as client:
            answers.append(client.get(json.loads(head).get("url", "/healthz")))
            answers += [client.get(path) for path in PAGES[arguments[0]]]
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert [each.status_code for each in answers[1:]] == [200] * len(PAGES[arguments[0]])
    return Shown(process.returncode, "\n".join((head, stdout, *(each.text for each in answers))), stderr)


def test_every_command_has_a_case() -> None:
    assert {*CASES, *SERVING} == set(COMMANDS)


@pytest.mark.parametrize("name", forms())
def test_each_form_is_found(name: str) -> None:
    assert name in leaks(f"before {forms()[name]} after")
    assert leaks("nothing of it") == []


@pytest.mark.deep
@pytest.mark.timeout(1500)
def test_no_command_shows_or_writes_a_secret(folder: Path, environment: dict[str, str]) -> None:
    found, failed, ended = [], [], {}
    order = ["init", "data", "launch", *(name for name in CASES if name not in ("init", "data", "launch"))]
    calls = [(called, arguments) for name in order for arguments in CASES[name]]
    calls += [(served, arguments) for arguments in SERVING.values()]
    for call, arguments in calls:
        done = call(folder, environment, arguments)
        shown = " ".join(arguments[:4])
        ended.setdefault(arguments[0], done.code)
        found += [f"{shown}: stdout, {form}" for form in leaks(done.stdout)]
        found += [f"{shown}: stderr, {form}" for form in leaks(done.stderr)]
        if "Traceback" in done.stderr:
            failed.append(f"{shown}: {done.stderr[-600:]}")
    found += [f"{name}: {form}" for name, text in written(folder) for form in leaks(text)]
    assert found == []
    assert failed == []
    assert {name: code for name, code in ended.items() if code} == REFUSED | {"ui": 130}
    assert (folder / "diff.html").is_file()
    assert [(folder / name).stat().st_mode & 0o077 for name in CARRIES_IT[1:]] == [0, 0]

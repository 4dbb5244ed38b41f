"""A canary in every secret: no command prints it, and no file that a command writes contains it.

Each command runs as a user starts it, in an empty folder, with secrets in variables, addresses, states and
recordings. What has no case says why.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

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
    *NOTIFIED,
)
LAUNCH = ("launch", "lm-tiny", *TINY)
CONTRACT = str(ROOT / "tests/training/launch/contracts/aws-dev.json")
KUBERAY = ("--on", "kuberay", "--stack", CONTRACT, "--image", "my/image:1", "--print")
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
    "cost": (("cost", "--help"),),
    "ci": (("ci", "approval", "pull-request.json"),),
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
    "runs": (("runs", "list", "--storage", "runs", "--json"),),
    "report": (("report", "runs/one"),),
    "evaluate": (("evaluate", "runs/one", "--json"),),
    "publish": (("publish", "runs/one", "--to", "published", "--json"),),
    "predict": (("predict", "runs/one", "text/a.txt", "--output", "answers", "--workers", "0", "--json"),),
    "doctor": (("doctor", "--json"),),
}
WITHOUT = {
    "preflight": "sends requests to the cloud; tests/infra/aws/test_preflight_requests.py has its errors",
    "train": "is `launch --on local`, which starts Ray; the run is that of `launch`",
    "tune": "starts launches, which have a case",
    "serve": "serves until it is ended; tests/training/post_training/test_serve.py has its logs",
    "ui": "serves until it is ended; tests/ui/test_access.py has its token",
    "dashboard": "connects to a cluster; tests/cluster/test_secrets.py runs in one",
    "fabric": "starts pods in a cluster",
    "sky": "writes SkyPilot's configuration from a kubeconfig, whose token it has to contain",
    "kubeconfig": "writes the launcher's token, which is what it is for, to a file that only its user can read",
    "image": "builds with buildah, podman or docker; logins are those of the clouds' own helpers",
    "cluster": "needs root; tests/cluster/test_secrets.py searches a whole run for canaries",
}


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


def leaks(text: str) -> list[str]:
    """The forms in which a text contains the canary."""
    return [name for name, form in forms().items() if form.casefold() in text.casefold()]


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file below a folder, besides the inputs of the cases."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in ("recording.json", "secret.yaml"):
            yield str(file.relative_to(folder)), file.read_bytes().decode("latin-1")


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
    (made / "pull-request.json").write_text(json.dumps({"number": 1, "labels": [], "reviews": []}))
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
    (made / "recording.json").write_text(json.dumps({"steps": [step], "changeSummary": {"update": 1}}))
    return made


@pytest.fixture(scope="module")
def call(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINFLEET")}
    environment |= SECRETS | {"TRAINFLEET_CACHE": str(folder / "cache"), "HOME": str(folder / "home")}
    environment |= {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainfleet", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_every_command_has_a_case_or_a_reason() -> None:
    assert set(CASES) | set(WITHOUT) == set(COMMANDS)
    assert not set(CASES) & set(WITHOUT)


@pytest.mark.parametrize("name", forms())
def test_each_form_is_found(name: str) -> None:
    assert name in leaks(f"before {forms()[name]} after")
    assert leaks("nothing of it") == []


@pytest.mark.deep
@pytest.mark.timeout(1500)
def test_no_command_shows_or_writes_a_secret(
    folder: Path, call: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    found, failed, ended = [], [], {}
    order = ["data", "launch", *(name for name in CASES if name not in ("data", "launch"))]
    for name in order:
        for arguments in CASES[name]:
            done = call(*arguments)
            shown = " ".join(arguments[:4])
            ended.setdefault(name, done.returncode)
            found += [f"{shown}: stdout, {form}" for form in leaks(done.stdout)]
            found += [f"{shown}: stderr, {form}" for form in leaks(done.stderr)]
            if "Traceback" in done.stderr:
                failed.append(f"{shown}: {done.stderr[-600:]}")
    found += [f"{name}: {form}" for name, text in written(folder) for form in leaks(text)]
    assert found == []
    assert failed == []
    trained = ("data", "launch", "report", "evaluate", "predict")
    assert {name: ended[name] for name in trained} == dict.fromkeys(trained, 0)
    assert (folder / "diff.html").is_file()

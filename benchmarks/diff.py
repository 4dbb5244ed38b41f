"""`trainfleet diff` on a project of somebody else that uses random and tls, and on this project's aws-prod.

    python -m benchmarks.diff [--smoke] [--json]

Each project is a git repository with one uncommitted change. The foreign one is compared by the wheel, which
is built and unpacked into a folder of its own; the project's SDKs, which Trainfleet does not depend on, are
installed from the package index into the cache folder once. The other is a clone of this checkout's last
commit, compared by its own Trainfleet. The first call on each compiles Python files, and is not counted. The
others alternate: with the base in the cache, and with `--no-cache`, which applies it again. A smoke run
compares the foreign project only.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import command
from trainfleet.errors import Problem, TrainfleetError
from trainfleet.toolchain import build_lock, cache_folder

ROOT = Path(__file__).resolve().parent.parent
SDKS = ("pulumi-random==4.21.4", "pulumi-tls==5.6.2")
ROUNDS = 5
STACK = "aws-prod"
SETTING = ("log_retention_days", "365", "400")
"""A line of the stack's settings, with its value before and after."""
PROGRAM = """import pulumi
import pulumi_aws as aws
import pulumi_random as random
import pulumi_tls as tls

suffix = random.RandomId("suffix", byte_length=6)
password = random.RandomPassword("password", length={length}, special=False)
key = tls.PrivateKey("key", algorithm="RSA", rsa_bits={bits})
certificate = tls.SelfSignedCert(
    "certificate",
    private_key_pem=key.private_key_pem,
    validity_period_hours=24,
    allowed_uses=["key_encipherment", "server_auth"],
    dns_names=["example.org"],
    subject={{"common_name": "example.org"}},
)
aws.s3.Bucket("data", bucket=suffix.hex.apply(lambda digits: f"data-{{digits}}"))
aws.ec2.KeyPair("login", public_key=key.public_key_openssh)
store = aws.secretsmanager.Secret("store")
aws.secretsmanager.SecretVersion("secret", secret_id=store.id, secret_string=password.result)
pulumi.export("certificate", certificate.cert_pem)
"""
CACHED = "base in the cache"


class Subject(NamedTuple):
    """What is compared: the arguments of `trainfleet diff`, and where and how it runs."""

    name: str
    arguments: tuple[str, ...]
    folder: Path
    environment: dict[str, str]
    exit_code: int
    changes: int
    """The least number of changed resources that the diff has to find."""
    target: float
    """Seconds of a call with the base in the cache."""


def measure(smoke: bool) -> dict[str, Any]:
    """Return the seconds of each call.

    Raises:
        TrainfleetError: an SDK or the wheel is not available, or a diff does not find the change.
    """
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="trainfleet-diff-") as folder:
        work = Path(folder)
        engines = work / "cache" / "trainfleet"
        engines.mkdir(parents=True)
        for entry in cache_folder().glob("engine-*"):
            (engines / entry.name).symlink_to(entry)
        for made in (_foreign,) if smoke else (_foreign, _own):
            subject = made(work)
            _call(subject)
            cached, applied = [], []
            for _ in range(1 if smoke else ROUNDS):
                cached.append(_call(subject))
                applied.append(_call(subject, "--no-cache"))
            for call, seconds in {CACHED: cached, "base applied again": applied}.items():
                row = {**command.summary(seconds, 1), "all": seconds, "target": subject.target}
                rows[f"{subject.name}, {call}"] = row
    return {**command.environment(("pulumi", "pulumi-aws")), "rows": rows}


def _foreign(work: Path) -> Subject:
    path = [str(_wheel(work)), str(_sdks())]
    return Subject(
        "a project of random, tls and aws",
        (".",),
        _project(work / "shop"),
        {**os.environ, "PYTHONPATH": os.pathsep.join(path), "XDG_CACHE_HOME": str(work / "cache")},
        exit_code=3,  # keys and passwords are replaced
        changes=4,
        target=20,
    )


def _own(work: Path) -> Subject:
    root = work / "own"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    name, before, after = SETTING
    settings = root / "stacks" / f"Pulumi.{STACK}.yaml"
    text = settings.read_text()
    if text.count(f"{name}: {before}") != 1:
        raise TrainfleetError(f"{STACK} does not set {name} to {before}")
    settings.write_text(text.replace(f"{name}: {before}", f"{name}: {after}"))
    environment = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(work / "cache")}
    return Subject(STACK, (STACK,), root, environment, exit_code=2, changes=1, target=15)


def _project(root: Path) -> Path:
    """Return a repository with one commit and one uncommitted change."""
    root.mkdir()
    (root / "Pulumi.yaml").write_text("name: shop\nruntime: python\n")
    (root / "Pulumi.prod.yaml").write_text("config:\n  aws:region: eu-central-1\n")
    program = root / "__main__.py"
    program.write_text(PROGRAM.format(length=24, bits=2048))
    who = ("-c", "user.name=b", "-c", "user.email=b@example.com", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run(["git", *who, *arguments], cwd=root, check=True)
    program.write_text(PROGRAM.format(length=32, bits=3072))
    return root


def _wheel(work: Path) -> Path:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(ROOT)]
    _run(build, "the wheel cannot be built")
    zipfile.ZipFile(next(work.glob("*.whl"))).extractall(work / "installed")
    return work / "installed"


def _sdks() -> Path:
    """Return the folder with the SDKs, which is filled once."""
    folder = cache_folder() / f"foreign-{hashlib.sha256(repr(SDKS).encode()).hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(folder.with_suffix(".lock"), lambda _: None):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".foreign-") as made:
                target = Path(made) / "sdks"
                install = [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-deps",
                    "--target",
                    str(target),
                ]
                _run([*install, *SDKS], "the SDKs cannot be installed")
                target.rename(folder)
    return folder


def _run(arguments: list[str], wrong: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(wrong, [Problem(arguments[2], done.stderr.strip()[-300:])])


def _call(subject: Subject, *flags: str) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "trainfleet", "diff", *subject.arguments, "--worktree", "--json", *flags],
        cwd=subject.folder,
        env=subject.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode != subject.exit_code or len(json.loads(done.stdout)["changes"]) < subject.changes:
        problem = Problem("trainfleet diff", f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        raise TrainfleetError(f"the diff of {subject.name} failed", [problem])
    return seconds


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print("\n| `trainfleet diff` of | median s | min | max | runs | target |\n|---|---|---|---|---|---|")
    for name, row in document["rows"].items():
        cells = " | ".join(f"{row[key]:.1f}" for key in ("median", "least", "most"))
        target = f"<= {row['target']} s" if name.endswith(CACHED) else ""
        print(f"| {name} | {cells} | {len(row['all'])} | {target} |")


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "", lambda _, smoke: measure(smoke), show)


if __name__ == "__main__":
    sys.exit(main())

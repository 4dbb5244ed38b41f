"""`trainfleet diff` from the wheel, on a project of somebody else that uses random and tls.

    python -m benchmarks.foreign_diff [--smoke] [--json]

The wheel is built and unpacked into a folder of its own, and the project is a git repository with one
uncommitted change. Its SDKs, which Trainfleet does not depend on, are installed from the package index into
the cache folder once. The first call compiles Python files, and is not counted. The others alternate: with
the base in the cache, and with `--no-cache`, which applies it again.
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
from typing import Any

from benchmarks import command
from trainfleet.errors import Problem, TrainfleetError
from trainfleet.toolchain import build_lock, cache_folder

ROOT = Path(__file__).resolve().parent.parent
SDKS = ("pulumi-random==4.21.4", "pulumi-tls==5.6.2")
TARGET_S = 20
ROUNDS = 5
CHANGED = 3
"""The exit code: keys and passwords are replaced."""
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


def measure(smoke: bool) -> dict[str, Any]:
    """Return the seconds of each call.

    Raises:
        TrainfleetError: an SDK or the wheel is not available, or a diff does not find the change.
    """
    with tempfile.TemporaryDirectory(prefix="trainfleet-foreign-") as folder:
        work = Path(folder)
        project = _project(work / "shop")
        path = [str(_wheel(work)), str(_sdks())]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "XDG_CACHE_HOME": str(work / "cache"),
        }
        for entry in cache_folder().glob("engine-*"):
            (work / "cache" / "trainfleet").mkdir(parents=True, exist_ok=True)
            (work / "cache" / "trainfleet" / entry.name).symlink_to(entry)
        _call(project, environment)
        rounds = range(1 if smoke else ROUNDS)
        times = [(_call(project, environment), _call(project, environment, "--no-cache")) for _ in rounds]
    cached, applied = zip(*times, strict=True)
    return {
        **command.environment(("pulumi", "pulumi-aws")),
        "target": TARGET_S,
        "rows": {
            "base in the cache": {**command.summary(cached, 1), "all": cached},
            "base applied again": {**command.summary(applied, 1), "all": applied},
        },
    }


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


def _call(project: Path, environment: dict[str, str], *flags: str) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "trainfleet", "diff", ".", "--worktree", "--json", *flags],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode != CHANGED or len(json.loads(done.stdout)["changes"]) < 4:
        raise TrainfleetError("the diff failed", [Problem("trainfleet diff", done.stderr.strip()[-300:])])
    return seconds


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print("\n| `trainfleet diff DIR` | median s | min | max | runs | target |\n|---|---|---|---|---|---|")
    for name, row in document["rows"].items():
        cells = " | ".join(f"{row[key]:.1f}" for key in ("median", "least", "most"))
        print(f"| {name} | {cells} | {len(row['all'])} | <= {document['target']} s |")


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "project", lambda _, smoke: measure(smoke), show)


if __name__ == "__main__":
    sys.exit(main())

"""The credential plugin of the contexts that `trainfleet sky setup` writes (client.authentication.k8s.io).

It prints the token of `trainfleet sky token` and keeps it. SkyPilot starts kubectl for each of its commands,
some fifty in the set-up of two pods, and each kubectl starts this. Most of the time of `trainfleet sky token`
goes to imports, so this runs as a file and imports the standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

EARLY = timedelta(minutes=15)
"""A token is renewed this long before its end, or at half of its time if that is later. Clients renew at
most five minutes early (kubernetes.config.kube_config: EXPIRY_SKEW_PREVENTION_DELAY)."""
PREFIX = "plugin-"
"""Of the files in which this keeps tokens."""


def kept_tokens(home: Path) -> Path:
    """The folder of kept tokens, next to those of kubectl and kubelogin."""
    return home / ".kube" / "cache" / "trainfleet"


def main(arguments: list[str]) -> int:
    """Print the credential for the arguments of `trainfleet sky token`. Returns the exit code."""
    kept = _file(arguments)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        if datetime.now(UTC) < datetime.fromisoformat(found["until"]):
            sys.stdout.write(found["credential"])
            return 0
    import subprocess

    # -P: a folder `trainfleet` where kubectl runs must not be imported.
    command = [sys.executable, "-P", "-m", "trainfleet", "sky", "token", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        _keep(kept, done.stdout)
    sys.stdout.write(done.stdout)
    return done.returncode


def _file(arguments: list[str]) -> Path:
    """The file of a token. After a change of the kubeconfig it is another one, because the token may be for
    another cluster.
    """
    digest = hashlib.sha256("\0".join(arguments).encode())
    with contextlib.suppress(OSError, ValueError, IndexError):
        digest.update(Path(arguments[arguments.index("--kubeconfig") + 1]).read_bytes())
    return kept_tokens(Path.home()) / f"{PREFIX}{digest.hexdigest()[:32]}.json"


def _keep(file: Path, credential: str) -> None:
    """Write a token that ends to its file, for this user alone."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        expires = json.loads(credential)["status"]["expirationTimestamp"]
        end = datetime.fromisoformat(expires.replace("Z", "+00:00"))
        until = end - min(EARLY, (end - datetime.now(UTC)) / 2)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        try:
            part.touch(mode=0o600)
            part.write_text(
                json.dumps({"until": until.isoformat(), "credential": credential}), encoding="utf-8"
            )
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)  # left if the write failed, for example on a full disk


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

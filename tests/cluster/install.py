"""`python -m tests.cluster.install`: the Debian packages that the tests of a real cluster need, before they
start (`make test-cluster`).

Where they cannot be installed (another system, not root) one line says so, and the tests are skipped with the
same line. Installing
is left to this program: a test run by hand changes nothing on the machine.
"""

from __future__ import annotations

import os
import shutil
import sys

from trainfleet.errors import TrainfleetError
from trainfleet.local_cluster import checks

PACKAGES = {
    "socat": "socat",
    "nc": "netcat-openbsd",
    "rsync": "rsync",
    "ssh": "openssh-client",
    "curl": "curl",
    "mkfs.ext4": "e2fsprogs",
}
"""Of the tests themselves: what SkyPilot and `ray up` call, and a file system of its own for a disk that
fills.
"""


def absent() -> list[str]:
    """The packages that are missing, the cluster's too."""
    ours = {
        package
        for program, package in PACKAGES.items()
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None
    }
    return sorted({*checks.missing_packages(), *ours})


def why_not() -> str:
    """What keeps a cluster from running here, in a line; nothing where it can run."""
    missing = absent()
    return checks.unsupported_reason() or (
        f"the tests of a cluster need {' '.join(missing)}: {checks.apt_command(missing)}" if missing else ""
    )


def main() -> None:
    reason = why_not()
    if reason and not checks.unsupported_reason() and shutil.which("apt-get"):
        sys.stdout.write(f"installing {' '.join(absent())}\n")
        sys.stdout.flush()
        try:
            checks.install(absent())
        except TrainfleetError as error:
            reason = " ".join(str(error).split())
        else:
            reason = why_not()
    if reason:
        sys.stdout.write(f"tests of a real cluster are skipped: {reason}\n")


if __name__ == "__main__":
    main()

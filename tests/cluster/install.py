"""Install the Debian packages that the cluster tests need: `python -m tests.cluster.install`.

Where they cannot be installed (another system, not root), print one line; pytest skips the tests with the
same line. Only this program installs packages: running pytest changes nothing on the machine.
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
    "buildah": "buildah",
    "gpg": "gpg",
}
"""Programs and their packages: what SkyPilot and `ray up` call, mkfs for the disk that a test fills, and what
builds images and signs a file for them."""


def absent() -> list[str]:
    """The missing packages, including those of the cluster."""
    ours = {
        package
        for program, package in PACKAGES.items()
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None
    }
    return sorted({*checks.missing_packages(), *ours})


def why_not() -> str:
    """Why a cluster cannot run here, in one line. Empty if it can."""
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

"""Builds the targets of images/Dockerfile with buildah, in a folder that holds everything buildah stores.

The base image is made with debootstrap, because the tests reach no registry. Every command has its own mount
and process namespaces, so its mounts and processes end with it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainfleet.local_cluster import rootfs
from trainfleet.local_cluster.node import ISOLATED

BASE = f"docker.io/library/debian:{rootfs.SUITE}-slim"
STAND_IN = "localhost/stand-in"
CERTIFICATES = "/usr/local/share/ca-certificates"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# buildah writes a cache of blobs below /var/lib, whatever its storage folder.
_ENTER = 'mount -t tmpfs tmpfs /var/lib\nexec "$@"'
_DEBOOTSTRAP = """\
container=$(buildah from scratch)
tree=$(buildah mount $container)
debootstrap --variant=minbase "$@" "$tree" $MIRROR
buildah umount $container
buildah commit --quiet $container $BASE
buildah rm $container
"""
CURL = """\
#!/bin/sh
# A stand-in for curl: it copies files of /served, by the last part of the URL, and records the URL.
set -eu
for url; do :; done
echo "$url" >> /served/asked
cp "/served/${url##*/}" .
"""


@dataclass(frozen=True)
class Builder:
    """buildah, with its storage in `folder`."""

    folder: Path
    checkout: Path

    def make_base(self) -> None:
        """Make the image of Debian that the Dockerfile starts from."""
        variables = {"MIRROR": " ".join(rootfs.debian_mirror()), "BASE": BASE}
        self._checked("sh", "-euc", _DEBOOTSTRAP, "sh", rootfs.SUITE, **variables)

    def make_stand_in(self) -> None:
        """Make a small image with the user of target `cuda`, which is larger than 20 GB."""
        user = f"useradd --uid {rootfs.UID} --create-home {rootfs.USER}"
        context = self.folder / "stand-in"
        context.mkdir()
        (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN {user}\nUSER {rootfs.UID}:{rootfs.UID}\n")
        self._checked("buildah", "bud", *self.options(), "-t", STAND_IN, str(context))

    def build(
        self, target: str, *options: str, served: Path | None = None, limit: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Build a target as localhost/TARGET; with `served` on the stand-in of `cuda`, with its files as all
        that can be downloaded by curl.
        """
        command = ["buildah", "bud", *self.options(), "--target", target]
        if served is not None:
            program = self.folder / "curl"
            program.write_text(CURL)
            program.chmod(0o755)
            command += ["-v", f"{program}:/usr/local/bin/curl:ro", "-v", f"{served}:/served"]
            command += ["--build-context", f"cuda=docker-image://{STAND_IN}"]
        images = self.checkout / "images"
        command += ["--ignorefile", str(images / "Dockerfile.dockerignore"), "-f", str(images / "Dockerfile")]
        return self._run(*command, *options, "-t", f"localhost/{target}", str(self.checkout), limit=limit)

    def image(self, *arguments: str, limit: float = 600) -> subprocess.CompletedProcess[str]:
        """Call `trainfleet image` with this storage."""
        return self._run(str(Path(sys.executable).with_name("trainfleet")), "image", *arguments, limit=limit)

    def start(self, image: str) -> str:
        """A container of a built image to run commands in. It is removed with the storage."""
        found = self._checked("buildah", "from", "--pull-never", image)
        return found.strip().splitlines()[-1]

    def run(self, container: str, *command: str) -> str:
        """The output of a command in the container, as the user and with the environment of its image.

        The command writes to a file: on a busy machine, buildah loses the output of some commands.
        """
        output = self.folder / "output"
        output.mkdir(exist_ok=True)
        output.chmod(0o777)
        file = output / "stdout"
        file.unlink(missing_ok=True)
        given = ["run", "--isolation", "chroot", "--network", "host", "-v", f"{output}:/output", container]
        given += ["--", "sh", "-euc", 'exec "$@" > /output/stdout', "sh", *command]
        self._checked("buildah", *given)
        return file.read_text()

    def options(self) -> list[str]:
        """Options of every build, with this machine's mirrors and certificates mounted for its steps."""
        settings = self.folder / "settings"
        settings.mkdir(exist_ok=True)
        url = rootfs.package_index().get("UV_DEFAULT_INDEX", "")
        (settings / "pip.conf").write_text(
            f"[global]\ncert = {BUNDLE}\n" + (f"index-url = {url}\n" if url else "")
        )
        (settings / "uv.toml").write_text(
            "native-tls = true\n" + (f'[[index]]\nurl = "{url}"\ndefault = true\n' if url else "")
        )
        dump = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True)
        lines = re.findall(r'^Acquire::(?:https?|Check|Retries)\S* ".+";$', dump.stdout, re.M | re.I)
        (settings / "apt.conf").write_text("\n".join(lines) + "\n")
        mounts = {
            str(settings / "pip.conf"): "/etc/pip.conf",
            str(settings / "uv.toml"): "/etc/uv/uv.toml",
            str(settings / "apt.conf"): "/etc/apt/apt.conf.d/99machine",
        }
        if Path(CERTIFICATES).is_dir():
            mounts[CERTIFICATES] = CERTIFICATES
        options = ["--isolation", "chroot", "--network", "host", "--layers", "--pull-never"]
        return options + [f"--volume={source}:{path}:ro" for source, path in mounts.items()]

    def _checked(self, *command: str, **variables: str) -> str:
        done = self._run(*command, **variables)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def _run(self, *command: str, limit: float = 600, **variables: str) -> subprocess.CompletedProcess[str]:
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        given: Sequence[str] = (*ISOLATED, "sh", "-euc", _ENTER, "sh", *command)
        logins = self.folder / "logins.json"
        if not logins.exists():  # the tools require a file that REGISTRY_AUTH_FILE names
            logins.write_text("{}")
        settings = self.folder / "storage.conf"
        settings.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\nrunroot = "{self.folder}/run"\n'
        )
        own = {
            "CONTAINERS_STORAGE_CONF": str(settings),
            "REGISTRY_AUTH_FILE": str(logins),
            "PATH": rootfs.PATH,
            "HOME": str(self.folder),
            "TMPDIR": str(temporary),
            **variables,
        }
        return subprocess.run(
            given, capture_output=True, text=True, check=False, timeout=limit, env=os.environ | own
        )

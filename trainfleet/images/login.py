"""The login of a registry: the password that the cloud's own program prints, or the user's own login.

No password is an argument of a command. Each is stored in a folder that is removed with the session.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.images.processes import run_quietly
from trainfleet.images.registry import DOCKER_HUB, Credentials
from trainfleet.images.tools import Session, Tool
from trainfleet.infra.cloud_support import all_supports

_DOCKER_NAMES = {DOCKER_HUB: "https://index.docker.io/v1/"}
"""Registries under whose host only buildah and podman store a login, and what docker stores it under."""


@dataclass(frozen=True)
class Helper:
    """The command of a cloud that prints the password of a registry, and the user it belongs to."""

    user: str
    command: tuple[str, ...]

    def credentials(self) -> Credentials:
        """Run the command.

        Raises:
            MissingToolError: it is not installed.
            TrainfleetError: it failed, for example because nobody is logged in.
        """
        program = self.command[0]
        if shutil.which(program) is None:
            fix = "install it, or log in yourself and pass --own-login"
            raise MissingToolError("cannot log in to the registry", [Problem(program, "is not on PATH", fix)])
        code, out, err = run_quietly(self.command)
        if code or not out.strip():
            reason = (err.strip().splitlines() or [f"exit code {code}, and no password"])[-1]
            raise TrainfleetError(
                "cannot log in to the registry", [Problem(shlex.join(self.command), reason)]
            )
        return Credentials(self.user, out.strip())


def helper_for(host: str) -> Helper | None:
    """The helper of the cloud that serves registries at this host; None if no cloud does."""
    for support in all_supports():
        login = support.registry_login
        if login and (found := re.fullmatch(login.host, host)):
            return Helper(login.user, tuple(part.format(**found.groupdict()) for part in login.command))
    return None


@dataclass(frozen=True)
class Access:
    """How registries are reached.

    Raises:
        InputError: the certificate cannot be read.

    Attributes:
        ca: the CA certificate of the registries, if the system does not trust it.
        own_login: use the tool's existing login instead of the clouds' programs.
    """

    ca: Path | None = None
    own_login: bool = False

    def __post_init__(self) -> None:
        if self.ca:
            try:
                ssl.create_default_context(cafile=self.ca)
            except OSError as error:  # ssl.SSLError is one
                pem = isinstance(error, ssl.SSLError)
                what = "has no certificate in PEM format" if pem else str(error.strerror)
                problem = Problem(f"--ca {self.ca}", what)
                raise InputError("cannot read the CA certificate", [problem]) from error

    def helper(self, host: str) -> Helper | None:
        """The helper that logs in to a registry; None = the tool's existing login is used."""
        return None if self.own_login else helper_for(host)


@contextlib.contextmanager
def session(tool: Tool, host: str, access: Access) -> Iterator[tuple[Session, Credentials | None]]:
    """Log in for the block; the login is removed afterwards. Without a helper, the existing login is used.

    Raises:
        TrainfleetError: the helper or the login failed.
    """
    with tempfile.TemporaryDirectory(prefix="trainfleet-login-") as folder:
        copy = None
        if access.ca:
            # The tools read a folder of certificates.
            copy = Path(folder, "certificates", "ca.crt")
            copy.parent.mkdir()
            shutil.copyfile(access.ca, copy)
        if (helper := access.helper(host)) is None:
            yield Session(None, copy), own_credentials(host)
            return
        mine = Session(Path(folder), copy, tool.connection())
        credentials = helper.credentials()
        command = tool.login(host, credentials.user, mine)
        code, _, err = run_quietly(command, tool.environment(mine), credentials.password)
        if code:
            reason = (err.strip().splitlines() or [f"exit code {code}"])[-1]
            raise TrainfleetError("cannot log in to the registry", [Problem(host, reason)])
        yield mine, credentials


def credentials_for(host: str, access: Access) -> Credentials | None:
    """The login of a registry without a tool; None = anonymous.

    Raises:
        TrainfleetError: the cloud's program is missing or failed.
    """
    helper = access.helper(host)
    return helper.credentials() if helper else own_credentials(host)


def own_credentials(host: str) -> Credentials | None:
    """What `buildah login`, `podman login` or `docker login` stored for a registry; None if nothing."""
    names = (host, _DOCKER_NAMES.get(host, host))
    for file, name in itertools.product(_login_files(), dict.fromkeys(names)):
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            row = document.get("auths", {}).get(name, {})
            helper = document.get("credHelpers", {}).get(name) or document.get("credsStore", "")
            if text := row.get("auth"):
                user, _, password = base64.b64decode(text).decode().partition(":")
                return Credentials(user, password)
        except (OSError, ValueError, AttributeError, binascii.Error):
            continue
        if helper and shutil.which(f"docker-credential-{helper}"):
            code, out, _ = run_quietly([f"docker-credential-{helper}", "get"], stdin=name)
            if code == 0:
                found = json.loads(out)
                return Credentials(found["Username"], found["Secret"])
    return None


def _login_files() -> Iterator[Path]:
    """Where the tools keep logins (containers-auth.json(5), docker login)."""
    if given := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(given)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = f"/run/containers/{os.getuid()}"
    yield Path(f"{runtime}/containers" if runtime else own, "auth.json")
    yield Path.home() / ".config" / "containers" / "auth.json"
    yield Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"

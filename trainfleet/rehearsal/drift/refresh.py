"""Refreshes a stack with the user's own Pulumi, login and credentials, without changing anything.

`pulumi preview --refresh` reads every resource from its cloud and then previews the program on what it found;
neither is saved. `pulumi stack export` before it says what the program ignores.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import Interrupted, MissingToolError, Problem, TrainfleetError
from trainfleet.rehearsal.diff import event_log
from trainfleet.rehearsal.diff.event_log import EventLog
from trainfleet.rehearsal.engine.find import MINIMUM, Engine, find_engine, installed, version_of
from trainfleet.rehearsal.engine.sandbox import uninterrupted
from trainfleet.rehearsal.steps.session import sigterm_as_interrupt
from trainfleet.toolchain import kill_tree, spawn

POLL_S = 0.1
CANCEL_S = 20.0
"""How long an interrupted Pulumi may take to cancel its requests."""
_OWN = {"PULUMI_DEBUG_COMMANDS": "true", "PULUMI_SKIP_UPDATE_CHECK": "true"}
"""`--event-log` is a debugging option of some versions."""
Progress = Callable[[str], None]


class NotDeployedError(TrainfleetError):
    """Raised if the backend has no stack of this name, or the stack has no resources."""


class ProtectedError(TrainfleetError):
    """Raised if the preview ended because the program would replace or delete a protected resource."""


@dataclass(frozen=True)
class Refreshed:
    """What a refresh read."""

    log: EventLog
    state: list[dict[str, Any]]
    """The resources of the stack, with encrypted secrets."""
    seconds: float


def users_engine() -> Engine:
    """Return the Pulumi that the user applies with: TRAINFLEET_PULUMI, else the one on PATH.

    Raises:
        MissingToolError: there is none, or it is too old.
    """
    if os.environ.get("TRAINFLEET_PULUMI"):
        return find_engine()
    if (found := installed()) is not None:
        return found
    least = ".".join(map(str, MINIMUM))
    version = version_of(Path("pulumi"))
    what = f"is version {version}; at least {least} is needed" if version else "is not on PATH"
    fix = "https://www.pulumi.com/docs/install/, or trainfleet drift --events FILE with a recording"
    raise MissingToolError("drift is read by your own Pulumi", [Problem("pulumi", what, fix)])


def refresh(
    root: Path, stack: str, engine: Engine, *, program: bool = True, progress: Progress = lambda _: None
) -> Refreshed:
    """Refresh a stack without saving what was read.

    Args:
        root: the project folder.
        stack: the stack, as Pulumi names it.
        engine: the user's Pulumi.
        program: whether to run the program too, so that the next up is known.
        progress: called with the URN of each resource that was read.

    Raises:
        NotDeployedError: there is no such stack, or it is empty.
        TrainfleetError: Pulumi failed: login, network, credentials, lock, or the program.
        Interrupted: Ctrl-C or SIGTERM; Pulumi was asked to cancel.
    """
    began = time.monotonic()
    with sigterm_as_interrupt(), tempfile.TemporaryDirectory(prefix="trainfleet-drift-") as folder:
        place = Path(folder)
        export = place / "export.json"
        _pulumi(engine, root, place, "stack", "export", "--stack", stack, "--file", str(export))
        state = _resources(export)
        if not any(each.get("custom") for each in state):
            raise NotDeployedError(
                "nothing is deployed", [Problem(stack, "has no resources", f"pulumi up --stack {stack}")]
            )
        notes = []
        try:
            log = _refreshed(root, stack, engine, place, progress, program=program)
        except ProtectedError as error:
            notes = [f"{error.summary}: the preview stopped there."]
            log = _refreshed(root, stack, engine, place, progress, program=False)
        found = event_log.read(log)
        found.notes += notes
        return Refreshed(found, state, time.monotonic() - began)


def _refreshed(
    root: Path, stack: str, engine: Engine, folder: Path, progress: Progress, *, program: bool
) -> Path:
    """Refresh a stack and return the event log."""
    log = folder / f"events-{program}.jsonl"
    log.touch()
    command = ("preview", "--refresh") if program else ("refresh", "--preview-only")
    arguments = (*command, "--stack", stack, "--event-log", str(log))
    with _following(log, progress) as tick:
        _pulumi(engine, root, folder, *arguments, log=log, tick=tick)
    return log


def _pulumi(
    engine: Engine,
    root: Path,
    folder: Path,
    *arguments: str,
    log: Path | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    command = [str(engine.path), *arguments, "--non-interactive", "--color", "never"]
    output = folder / "output.txt"
    with output.open("wb") as file:
        child = spawn(
            command,
            cwd=root,
            env={**os.environ, **_OWN},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                tick()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_S)
            tick()
        except KeyboardInterrupt as error:
            _cancel(child)
            raise Interrupted("interrupted; the refresh saves nothing, so nothing has changed") from error
        finally:
            kill_tree(child)
    if child.returncode != 0:
        text = output.read_text(errors="replace")
        details = event_log.read(log).errors() if log and log.stat().st_size else []
        raise explained(arguments, text, details)


def _cancel(child: subprocess.Popen[bytes]) -> None:
    """Ask Pulumi to cancel, as Ctrl-C in its terminal does, and wait for it."""
    with uninterrupted(), contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGINT)
        child.wait(CANCEL_S)


@contextlib.contextmanager
def _following(log: Path, progress: Progress) -> Iterator[Callable[[], None]]:
    """Report each resource in an event log while it is written."""
    with log.open("rb") as reader:
        rest = b""

        def tick() -> None:
            nonlocal rest
            rest += reader.read()
            *lines, rest = rest.split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    progress(json.loads(line)["resOutputsEvent"]["metadata"]["urn"])

        yield tick


def _resources(export: Path) -> list[dict[str, Any]]:
    try:
        deployment = json.loads(export.read_text(encoding="utf-8")).get("deployment") or {}
    except (OSError, ValueError, AttributeError) as error:
        raise TrainfleetError(
            "cannot read the state", [Problem("pulumi stack export", f"wrote no JSON: {error}")]
        ) from error
    found = deployment.get("resources") or []
    return [each for each in found if isinstance(each, dict) and {"urn", "type"} <= each.keys()]


# ---- messages


@dataclass(frozen=True)
class _Reason:
    pattern: str
    summary: str
    fix: str


_REASONS = (
    _Reason(
        r"no stack named|stack '[^']*' not found|404.*[Ss]tack",
        "the stack is not deployed",
        "pulumi stack ls lists the stacks of the backend that you are logged in to",
    ),
    _Reason(
        r"PULUMI_ACCESS_TOKEN must be set|not logged in|`?pulumi login`?|invalid access token"
        r"|401 .*[Uu]nauthorized",
        "there is no login to the state backend",
        "pulumi login URL, or set PULUMI_BACKEND_URL or PULUMI_ACCESS_TOKEN",
    ),
    _Reason(
        r"incorrect passphrase|passphrase must be set|PULUMI_CONFIG_PASSPHRASE",
        "the secrets of the stack cannot be decrypted",
        "set PULUMI_CONFIG_PASSPHRASE or PULUMI_CONFIG_PASSPHRASE_FILE",
    ),
    _Reason(
        r"currently locked|stack is locked|conflict.*update.*in progress",
        "another command is working on the stack",
        "wait for it; if its process was killed: pulumi cancel",
    ),
    _Reason(
        r"NoCredentialProviders|[Nn]o valid credential|could not find default credentials|failed to refresh"
        r" cached credentials|ExpiredToken|InvalidClientTokenId|[Uu]nable to locate credentials|AADSTS\d+"
        r"|az login|invalid_grant|reauth|failed to (get|acquire a) token|DefaultAzureCredential|EC2 IMDS role"
        r"|AuthenticationFailed",
        "there is no valid login to the cloud",
        "log in: aws sso login, gcloud auth application-default login, or az login",
    ),
    _Reason(
        r"AccessDenied|(?i:not authorized)|AuthorizationFailed|[Pp]ermission(s)? denied|UnauthorizedOperation"
        r"|\b403\b|Forbidden",
        "the login may not read a resource",
        "use an identity that may read the whole stack, such as the plan identity of the CI",
    ),
    _Reason(
        r"no such host|dial tcp|i/o timeout|connection refused|network is unreachable|TLS handshake"
        r"|connection reset|proxyconnect|server misbehaving",
        "the network does not reach the backend or the cloud",
        "check the connection, the proxy (HTTPS_PROXY) and the name of the backend",
    ),
    _Reason(
        r"unable to open bucket",
        "the state backend cannot be opened",
        "check the URL of `pulumi login` or PULUMI_BACKEND_URL",
    ),
    _Reason(
        r"no resource plugin|could not (find|load) plugin|failed to load plugin|no language plugin",
        "Pulumi lacks a plugin",
        "pulumi install",
    ),
)


def explained(arguments: tuple[str, ...], output: str, details: list[str]) -> TrainfleetError:
    """Return the error for a failed command, with the fix for the usual causes.

    Args:
        arguments: of Pulumi.
        output: what it wrote.
        details: the errors in its event log.
    """
    lines = details or [
        found[1] for line in output.splitlines() if (found := re.match(r"\s*error:\s*(.+)", line))
    ]
    text = " ".join(" ".join(map(_without_traceback, lines) if lines else output.split()[-80:]).split())
    if "marked for protection" in text:
        return ProtectedError("An up would replace or delete a protected resource, and refuses")
    shown = _without_credentials(text)
    shown = shown if len(shown) <= 500 else f"{shown[:499]}…"
    where = f"pulumi {' '.join(arguments[:2])}"
    for reason in _REASONS:
        if re.search(reason.pattern, f"{text} {output if not lines else ''}"):
            kind = NotDeployedError if reason is _REASONS[0] else TrainfleetError
            return kind(reason.summary, [Problem(where, shown, reason.fix)])
    fix = (
        "correct the program, or pass --refresh-only to read the cloud without it"
        if arguments[0] == "preview"
        else ""
    )
    return TrainfleetError("Pulumi failed", [Problem(where, shown or "wrote no message", fix)])


def _without_traceback(text: str) -> str:
    """Return the last line of a program's traceback, which says what failed; other messages as they are."""
    written = [line for line in text.splitlines() if line.strip()]
    return f"the program failed: {written[-1].strip()}" if "Traceback (most recent" in text else text


def _without_credentials(text: str) -> str:
    """Return a message without the credentials that a URL may contain."""
    text = re.sub(r"(?<=://)[^/@\s]+@", "[secret]@", text)
    return re.sub(r"(?i)\b(sig|token|secret|password|x-amz-signature)=[^&\s\"']+", r"\1=[secret]", text)

"""What a rehearsed program and a policy pack can reach: no credential of the caller, no process, no network.

The program of a test reports what it sees as a stack output; the pack reports it as a violation.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal.engine import isolation
from trainfleet.rehearsal.engine.environment import Access, environment
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse

PLANTED = (
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "VAULT_TOKEN",
    "HF_TOKEN",
    "SSH_AUTH_SOCK",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_OAUTH_ACCESS_TOKEN",
    "ARM_CLIENT_SECRET",
    "PULUMI_ACCESS_TOKEN",
    "DATABASE_URL",
    "HTTPS_PROXY",
)
VALUE = "planted-9c41"
LOOK = f"""
import glob, json, os, socket, subprocess, sys
def found():
    seen = sorted(name for name, value in os.environ.items() if {VALUE!r} in value)
    for file in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = open(file).read()
        except OSError:
            continue
        seen += ["another process"] if {VALUE!r} in text else []
    return seen
def failure(act):
    try:
        act()
    except OSError as error:
        return str(error)
    return "connected"
"""
needs_seccomp = pytest.mark.skipif(bool(isolation.unsupported()), reason=isolation.unsupported() or "none")


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the variables here and in another process of the same user, which a program could look at."""
    for name in PLANTED:
        monkeypatch.setenv(name, f"https://user:{VALUE}@example.invalid")
    with subprocess.Popen(["sleep", "600"]) as other:
        yield
        other.kill()


@pytest.fixture
def listening() -> Iterator[int]:
    """Accept connections on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def outputs(engine: Engine, folder: Path, access: Access = Access()) -> dict[str, Any]:
    """Apply a program and return its stack outputs."""
    file = folder.parent / "outputs.json"
    report = rehearse(
        read_project(folder), engine, RehearsalOptions(until="apply", outputs=file, access=access)
    )
    assert report.ok, report.problems
    return dict(json.loads(file.read_text()))


def test_no_credential_reaches_the_program(engine: Engine, program: Callable[[str], Path]) -> None:
    folder = program(LOOK + 'aws.s3.Bucket("b")\npulumi.export("seen", json.dumps(found()))')
    assert json.loads(outputs(engine, folder)["seen"]) == []


def test_no_credential_reaches_a_policy_pack(
    engine: Engine, program: Callable[[str], Path], tmp_path: Path
) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "PulumiPolicy.yaml").write_text("runtime: python\n")
    (pack / "__main__.py").write_text(
        LOOK + "from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy\n"
        "refused = failure(lambda: socket.create_connection(('127.0.0.1', 1)))\n"
        "def look(args, report):\n    report('seen: ' + json.dumps(found()) + ' ' + refused)\n"
        "PolicyPack('pack', enforcement_level=EnforcementLevel.MANDATORY,"
        " policies=[ResourceValidationPolicy('look', 'look', look)])\n"
    )
    report = rehearse(read_project(program('aws.s3.Bucket("b")')), engine, RehearsalOptions([pack]))
    reported = " ".join(map(str, report.problems))
    assert "seen: []" in reported, report.problems
    assert "has no network" in reported, report.problems


@needs_seccomp
def test_the_kernel_refuses_connections_of_the_program_and_of_its_children(
    engine: Engine, program: Callable[[str], Path], listening: int
) -> None:
    child = (
        "import socket; socket.create_connection(('127.0.0.1', {port}))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.socket().sendto(b'x', socket.MSG_FASTOPEN, ('127.0.0.1', {port}))",
    )
    code = LOOK + (
        f'own = failure(lambda: socket.create_connection(("127.0.0.1", {listening})))\n'
        f"children = [subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stderr"
        f" for code in {[each.format(port=listening) for each in child]!r}]\n"
        'aws.s3.Bucket("b")\npulumi.export("own", own)\npulumi.export("children", children)'
    )
    found = outputs(engine, program(code))
    assert "use --network" in found["own"]
    assert ["PermissionError" in text for text in found["children"]] == [True] * len(child), found


def test_with_network_a_program_connects(
    engine: Engine, program: Callable[[str], Path], listening: int
) -> None:
    code = LOOK + (
        f'own = failure(lambda: socket.create_connection(("127.0.0.1", {listening})))\n'
        'aws.s3.Bucket("b")\npulumi.export("own", own)'
    )
    assert outputs(engine, program(code), Access(network=True))["own"] == "connected"


def test_the_engine_fetches_no_remote_asset(engine: Engine, program: Callable[[str], Path]) -> None:
    code = 'aws.s3.BucketObjectv2("o", bucket="b", source=pulumi.RemoteAsset("http://example.invalid/x"))'
    report = rehearse(read_project(program(code)), engine, RehearsalOptions(until="preview"))
    assert "127.0.0.1:9" in " ".join(map(str, report.problems)), report.problems


def test_named_variables_are_passed(engine: Engine, program: Callable[[str], Path]) -> None:
    folder = program(LOOK + 'aws.s3.Bucket("b")\npulumi.export("seen", json.dumps(found()))')
    assert json.loads(outputs(engine, folder, Access(variables=("HF_TOKEN",)))["seen"]) == ["HF_TOKEN"]


def test_variables_that_cannot_be_passed_are_all_named() -> None:
    with pytest.raises(InputError) as failed:
        environment(Path("/none"), Access(variables=("NOT_SET", "PULUMI_HOME")), {"PULUMI_HOME": "x"})
    assert [problem.where for problem in failed.value.problems] == ["--env NOT_SET", "--env PULUMI_HOME"]


def test_a_proxy_is_passed_with_the_network_only() -> None:
    given = {"HTTPS_PROXY": "http://proxy:3128", "LC_ALL": "C", "NETRC": "x"}
    assert environment(Path("/none"), Access(), given)["HTTPS_PROXY"] == "http://127.0.0.1:9"
    passed = environment(Path("/none"), Access(network=True), given)
    assert (passed["HTTPS_PROXY"], passed["LC_ALL"], "NETRC" in passed) == ("http://proxy:3128", "C", False)


def test_a_platform_without_a_filter_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isolation.unsupported() == "darwin has no seccomp"

"""The language host runs policy packs for engines that request it (RunPlugin), as Pulumi 3.274 does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2_grpc
from pulumi.runtime.proto import language_pb2 as pb
from pulumi.runtime.proto import language_pb2_grpc as rpc

from tests.training.launches import wait_for
from trainfleet.rehearsal.engine.language import Programs, serve


@pytest.fixture
def host() -> Iterator[rpc.LanguageRuntimeStub]:
    with serve(Programs(python=sys.executable)) as runtime:
        port = runtime.partition(":")[2]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield rpc.LanguageRuntimeStub(channel)


def request(kind: str, folder: Path, *arguments: str) -> Any:
    info = pb.ProgramInfo(root_directory=str(folder), program_directory=str(folder), entry_point=".")
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    return pb.RunPluginRequest(pwd=str(folder), args=arguments, env=environment, info=info, kind=kind)


def analyzers() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "trainfleet.rehearsal.engine.analyzer" in each.cmdline():
                found.append(each)
    return found


def handled_signals(process: psutil.Process) -> set[int]:
    """The signals that a process handles itself (`SigCgt` in proc(5), bit n - 1 for signal n)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
    return {number for number in range(1, 65) if caught >> (number - 1) & 1}


@pytest.mark.timeout(120)
def test_a_policy_pack_answers_at_the_port_that_it_prints_until_the_call_ends(
    host: rpc.LanguageRuntimeStub, root: Path
) -> None:
    call = host.RunPlugin(request("analyzer", root / "policies", "127.0.0.1:1"))
    port = int(next(each.stdout for each in call if each.stdout))
    (process,) = analyzers()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = analyzer_pb2_grpc.AnalyzerStub(channel)
        found = stub.GetAnalyzerInfo(empty_pb2.Empty(), timeout=60)
    assert len(found.policies) > 50
    assert not handled_signals(process) & {signal.SIGINT, signal.SIGTERM}, (
        "a signal may wait for the main thread"
    )
    call.cancel()
    wait_for(lambda: not process.is_running(), "the policy pack is left", 30)


@pytest.mark.timeout(120)
def test_the_output_and_exit_code_of_a_pack_that_does_not_load_are_passed_on(
    host: rpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    (tmp_path / "__main__.py").write_text("raise SystemExit('no rules here')\n")
    (tmp_path / "PulumiPolicy.yaml").write_text("runtime: python\n")
    answers = list(host.RunPlugin(request("analyzer", tmp_path, "127.0.0.1:1")))
    assert b"no rules here" in b"".join(each.stderr for each in answers)
    assert answers[-1].exitcode == 1
    assert not analyzers()


def test_another_kind_of_plugin_is_refused(host: rpc.LanguageRuntimeStub, root: Path) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(host.RunPlugin(request("resource", root)))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "cannot run a plugin of kind `resource`" in caught.value.details()

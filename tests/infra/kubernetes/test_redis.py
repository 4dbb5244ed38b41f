"""The Redis of the layer: one pod whose password exists only in the cluster, at the address of the contract."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.infra.kubernetes.api_server import api_server
from tests.infra.kubernetes.planned import plan, spec
from trainfleet.infra.kubernetes.names import PRIORITIES, REDIS, REDIS_PASSWORD_KEY, REDIS_PORT
from trainfleet.infra.program import ray_redis

IN_CLUSTER = {"ray": {"redis": {"mode": "in-cluster", "storage_gib": 3}}}


def test_a_platform_has_no_redis_unless_its_spec_says_so() -> None:
    assert not plan().of("StatefulSet")
    assert ray_redis(spec()) is None
    existing = {"mode": "existing", "address": "rediss://r.example:6380", "password_secret": "keys"}
    assert not plan({"ray": {"redis": existing}}).of("StatefulSet")
    assert ray_redis(spec(ray={"redis": existing})) == {
        "address": "rediss://r.example:6380",
        "password_secret": "keys",
        "password_key": REDIS_PASSWORD_KEY,
    }


def test_the_contract_has_the_address_and_password_of_the_pod() -> None:
    planned = plan(IN_CLUSTER)
    (server,) = planned.of("StatefulSet").values()
    (service,) = [each for each in planned.of("Service").values() if each["metadata"]["name"] == REDIS]
    pod = server["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    contract = ray_redis(spec(**IN_CLUSTER))
    assert contract is not None
    namespace, port = service["metadata"]["namespace"], int(service["spec"]["ports"][0]["port"])
    assert contract["address"] == f"redis://{REDIS}.{namespace}.svc:{port}"
    assert port == REDIS_PORT
    (container,) = pod["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": contract["password_secret"], "key": "password"}
    assert server["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "3Gi"
    assert container["volumeMounts"][0]["name"] == "data"


def test_no_run_preempts_the_pod_that_its_head_needs() -> None:
    (server,) = plan(IN_CLUSTER).of("StatefulSet").values()
    highest = max(PRIORITIES, key=PRIORITIES.__getitem__)
    assert server["spec"]["template"]["spec"]["priorityClassName"] == highest
    without = IN_CLUSTER | {"layer": {"priority_classes": False}, "queue": {"enabled": False}}
    (server,) = plan(without).of("StatefulSet").values()
    assert "priorityClassName" not in server["spec"]["template"]["spec"]


def test_the_password_is_in_no_argument_of_the_server(tmp_path: Path) -> None:
    (server,) = plan(IN_CLUSTER).of("StatefulSet").values()
    command = server["spec"]["template"]["spec"]["containers"][0]["command"]
    # A stand-in for redis-server that shows its arguments and what it reads.
    program = tmp_path / "redis-server"
    program.write_text('#!/bin/sh\necho "arguments $*"; cat\n')
    program.chmod(0o755)
    done = subprocess.run(
        command,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PASSWORD": "pass word"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, *read = done.stdout.splitlines()
    assert first.startswith("arguments - --port 6379 --dir /data")
    assert "pass word" not in first
    assert read == ["requirepass pass word"]


@pytest.mark.parametrize(("token", "code"), [("the-token", 0), ("another", 1)])
def test_the_job_creates_the_password_once_and_keeps_it(tmp_path: Path, token: str, code: int) -> None:
    script = Path(str(files("trainfleet.infra.kubernetes.scripts"))) / "redis_password.py"
    with api_server(tmp_path, "the-token") as server:
        (tmp_path / "token").write_text(token)
        (tmp_path / "ca.crt").write_bytes(server.certificate.read_bytes())
        environment = {
            "PATH": os.environ["PATH"],
            "SECRET": REDIS,
            "KEY": REDIS_PASSWORD_KEY,
            "NAMESPACE": "training",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "ACCOUNT": str(tmp_path),
        }
        runs = []
        for _ in range(2):
            command = [sys.executable, str(script)]
            runs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=False))
            objects = dict(server.objects)
            if code == 0 and len(runs) == 1:
                first = objects
    assert [each.returncode for each in runs] == [code, code], runs[0].stderr
    if code:
        assert "refused with status 401" in runs[0].stdout
        return
    assert objects == first
    data = objects[f"/api/v1/namespaces/training/secrets/{REDIS}"]["data"]
    password = base64.b64decode(data[REDIS_PASSWORD_KEY]).decode()
    assert len(password) == 64
    assert password not in "".join(each.stdout + each.stderr for each in runs)

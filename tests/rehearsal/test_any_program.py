"""Programs of other people: other packages, other stacks, dynamic providers, data sources, and what is missing.

Each is rehearsed by the command itself, on the real engine.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_public_key

from tests.rehearsal.sdks import sdks
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.simulation.other_packages import OTHER_MODELS
from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel

FOREIGN = Path(__file__).with_name("programs") / "foreign"
ROOT = Path(__file__).parents[2]
LIMIT = 300


@dataclass(frozen=True)
class Done:
    """A finished command: its report, its outputs, and what it wrote on stderr."""

    report: dict[str, Any]
    outputs: dict[str, Any]
    errors: str

    @property
    def problems(self) -> list[dict[str, str]]:
        return [problem for step in self.report["steps"] for problem in step["problems"]]

    def step(self, name: str) -> dict[str, Any]:
        return next(step for step in self.report["steps"] if step["name"] == name)


def rehearse(folder: Path, written: Path, *flags: str, foreign_sdks: bool = False) -> Done:
    path = [str(ROOT), *([str(sdks())] if foreign_sdks else [])]
    outputs = written / "outputs.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trainfleet",
            "rehearse",
            f"{folder}/",
            "--json",
            "--outputs",
            str(outputs),
            *flags,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout, done.stderr
    return Done(
        json.loads(done.stdout),
        json.loads(outputs.read_text()) if outputs.is_file() else {},
        done.stderr,
    )


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Copy the program of the parameter, without its rehearsal.toml."""
    folder = tmp_path / request.param
    shutil.copytree(FOREIGN / request.param, folder)
    (folder / "rehearsal.toml").unlink(missing_ok=True)
    return folder


@pytest.mark.deep
def test_random_values_and_keys_are_real_and_the_same_in_every_rehearsal(
    engine: Engine, tmp_path: Path
) -> None:
    done = rehearse(FOREIGN / "random_tls_aws", tmp_path, "--fault", "every", foreign_sdks=True)
    assert done.report["ok"], done.problems
    out = done.outputs
    assert re.fullmatch(r"[0-9a-f]{12}", out["suffix"])
    assert out["bucket"] == f"data-{out['suffix']}"
    assert re.fullmatch(r"[A-Za-z0-9]{24}", out["password"])
    assert len(re.findall(r"\d", out["password"])) >= 3
    assert len(out["pet"].split("-")) == 3
    assert 20000 <= out["port"] <= 20100
    key = load_pem_private_key(out["private_key"].encode(), None)
    assert key.key_size == 2048
    assert (
        load_ssh_public_key(out["public_key"].encode()).public_numbers() == key.public_key().public_numbers()
    )
    certificate = x509.load_pem_x509_certificate(out["certificate"].encode())
    assert certificate.public_key().public_numbers() == key.public_key().public_numbers()
    certificate.verify_directly_issued_by(certificate)
    again = rehearse(FOREIGN / "random_tls_aws", tmp_path, "--until", "apply", foreign_sdks=True)
    assert again.outputs == out


@pytest.mark.deep
def test_a_stack_reference_reads_another_programs_outputs(engine: Engine, tmp_path: Path) -> None:
    done = rehearse(FOREIGN / "service", tmp_path)
    assert done.report["ok"], done.problems
    assert re.fullmatch(r"vpc-0[0-9a-f]{16}", done.outputs["vpc_id"])


@pytest.mark.parametrize("copied", ["service"], indirect=True)
def test_every_unknown_stack_is_named_at_once(engine: Engine, copied: Path, tmp_path: Path) -> None:
    (problem,) = rehearse(copied, tmp_path, "--until", "preview").problems
    assert 'name = "acme/network/prod"' in problem["fix"]
    assert 'name = "acme/dns/prod"' in problem["fix"]


@pytest.mark.parametrize("copied", ["network"], indirect=True)
def test_stacks_in_a_circle_are_refused(engine: Engine, copied: Path, tmp_path: Path) -> None:
    (copied / "rehearsal.toml").write_text('[[stack]]\nname = "a/network/dev"\nprogram = "."\n')
    command = [sys.executable, "-m", "trainfleet", "rehearse", f"{copied}/"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 2
    assert "circle" in done.stderr


def test_a_dynamic_provider_is_not_executed_and_the_report_says_so(engine: Engine, tmp_path: Path) -> None:
    done = rehearse(FOREIGN / "dynamic", tmp_path)
    assert done.report["ok"], done.problems
    assert done.outputs["executed"] is False
    assert done.outputs["child"] == f"below {done.outputs['url']}"
    assert [warning for warning in done.report["warnings"] if "not executed" in warning]
    assert done.step("apply")["resources"] == 2


@pytest.mark.deep
def test_data_sources_are_answered_from_the_cloud_and_from_the_project(
    engine: Engine, tmp_path: Path
) -> None:
    done = rehearse(FOREIGN / "data_sources", tmp_path)
    assert done.report["ok"], done.problems
    assert done.outputs == {
        "existing": "10.2.0.0/16",
        "own": "10.1.0.0/16",
        "zone": "Z0123456789ABCDEFGHIJ",
        "bucket": "arn:aws:s3:::shared",
    }


@pytest.mark.parametrize("copied", ["data_sources"], indirect=True)
@pytest.mark.deep
def test_all_missing_answers_are_one_problem_whose_rows_can_be_pasted(
    engine: Engine, copied: Path, tmp_path: Path
) -> None:
    (problem,) = rehearse(copied, tmp_path, "--until", "preview").problems
    assert "getZone" in problem["what"]
    assert "getBucket" in problem["what"]
    (copied / "rehearsal.toml").write_text(problem["fix"].split("as in:", 1)[1])
    done = rehearse(copied, tmp_path)
    assert done.report["ok"], done.problems


def test_all_missing_settings_are_named_at_once(engine: Engine, tmp_path: Path) -> None:
    done = rehearse(FOREIGN / "settings", tmp_path)
    assert [problem["fix"] for problem in done.problems] == [
        "pulumi config set settings:name VALUE",
        "pulumi config set --secret settings:token VALUE",
        "pulumi config set settings:size 1",
        "pulumi config set settings:public true",
        "pulumi config set team:owner VALUE",
    ]
    assert done.problems[0]["where"] == "__main__.py:7"


def test_all_missing_packages_are_named_with_the_command(engine: Engine, tmp_path: Path) -> None:
    (problem,) = rehearse(FOREIGN / "packages", tmp_path).problems
    assert problem["fix"] == "pip install pulumi-nowhere-to-be-found another-missing-package"


@pytest.mark.deep
def test_components_of_plugins_have_simulated_outputs(engine: Engine, tmp_path: Path) -> None:
    done = rehearse(FOREIGN / "component", tmp_path, foreign_sdks=True)
    assert done.report["ok"], done.problems
    out = done.outputs
    assert re.fullmatch(r"vpc-0[0-9a-f]{16}", out["vpc_id"])
    assert out["cidr"] == "10.0.0.0/16"  # of `network.vpc`, a reference to a resource
    assert all(re.fullmatch(r"subnet-0[0-9a-f]{16}", each) for each in out["subnets"])
    assert len(out["private"]) == 3  # one in each zone
    assert set(out["private"]) < set(out["subnets"])
    assert len(out["subnets"]) == 6
    assert out["isolated"] == []
    assert out["kubeconfig"]["current-context"] == out["kubeconfig"]["contexts"][0]["name"]
    assert out["issuer"].startswith("https://oidc.eks.us-east-2.amazonaws.com/id/")
    assert len(set(out["names"])) == 1
    assert done.step("no-op")["changes"] == {}
    warned = [warning for warning in done.report["warnings"] if "does not run plugins" in warning]
    assert [warning.split(": ")[0] for warning in warned] == [
        "awsx:ec2:Vpc network",
        "eks:index:Cluster cluster",
    ]


@pytest.mark.parametrize("copied", ["component"], indirect=True)
@pytest.mark.deep
def test_rehearsal_toml_overrides_outputs_of_a_component(
    engine: Engine, copied: Path, tmp_path: Path
) -> None:
    (copied / "rehearsal.toml").write_text(
        '[[answer]]\ntype = "awsx:ec2:Vpc"\noutputs = { vpcId = "vpc-0123456789abcdef0" }\n'
    )
    done = rehearse(copied, tmp_path, "--until", "apply", foreign_sdks=True)
    assert done.report["ok"], done.problems
    assert done.outputs["vpc_id"] == "vpc-0123456789abcdef0"
    assert len(done.outputs["private"]) == 3


@pytest.mark.parametrize("copied", ["component"], indirect=True)
def test_wrong_inputs_of_a_component_are_rejected_by_name(
    engine: Engine, copied: Path, tmp_path: Path
) -> None:
    program = copied / "__main__.py"
    wrong = 'cidr_block="10.0.0.0/16", subnet_strategy="Autoo", nat_gateways={"strategy": "Single", "ips": 1}'
    program.write_text(program.read_text().replace('cidr_block="10.0.0.0/16"', wrong))
    done = rehearse(copied, tmp_path, "--until", "preview", foreign_sdks=True)
    assert {problem["where"] for problem in done.problems} == {
        "awsx:ec2:Vpc network natGateways.ips",
        "awsx:ec2:Vpc network subnetStrategy",
    }


def test_a_command_is_not_executed_and_an_answer_gives_it_an_output(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: commands\nruntime: python\n")
    (folder / "__main__.py").write_text(
        "import pulumi, pulumi_command as command, pulumi_cloudinit as cloudinit\n"
        f"run = command.local.Command('run', create='touch {tmp_path}/executed; echo real')\n"
        "silent = command.local.Command('silent', create='true', triggers=['1'])\n"
        "config = cloudinit.Config('config', gzip=False, base64_encode=True,"
        " parts=[{'content': '#!/bin/sh', 'content_type': 'text/x-shellscript'}])\n"
        "pulumi.export('run', run.stdout)\npulumi.export('silent', silent.stdout)\n"
        "pulumi.export('rendered', config.rendered)\n"
    )
    (folder / "rehearsal.toml").write_text(
        '[[answer]]\ntype = "command:local:Command"\nname = "run"\noutputs = { stdout = "answered" }\n'
    )
    done = rehearse(folder, tmp_path, foreign_sdks=True)
    assert done.report["ok"], done.problems
    assert not (tmp_path / "executed").exists()
    assert (done.outputs["run"], done.outputs["silent"]) == ("answered", "")
    assert "Content-Type: text/x-shellscript" in base64.b64decode(done.outputs["rendered"]).decode()


@pytest.mark.parametrize(
    ("kind", "inputs", "path"),
    [
        ("RandomPassword", {"length": 4, "minNumeric": 3, "minLower": 3}, "length"),
        ("RandomPassword", {"length": 0}, "length"),
        ("RandomInteger", {"min": 5, "max": 1}, "min"),
        ("PrivateKey", {"algorithm": "DSA"}, "algorithm"),
        ("CertRequest", {"privateKeyPem": "no key"}, "privateKeyPem"),
    ],
)
def test_what_only_the_provider_refuses_is_rejected(kind: str, inputs: dict[str, Any], path: str) -> None:
    model = OTHER_MODELS["random" if kind.startswith("Random") else "tls"]
    assert isinstance(model, ComputedModel)
    assert [mistake.path for mistake in model.mistakes(kind, inputs)] == [path]


@pytest.mark.deep
def test_components_of_the_kubernetes_plugin_are_rehearsed(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "charts"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: charts\nruntime: python\n")
    (folder / "__main__.py").write_text(
        "import pulumi, pulumi_kubernetes as kubernetes\n"
        "chart = kubernetes.helm.v4.Chart('web', chart='./web', values={'replicas': 2})\n"
        "kubernetes.yaml.v2.ConfigGroup('group', yaml='kind: ConfigMap')\n"
        "after = pulumi.ResourceOptions(depends_on=[chart])\n"
        "kubernetes.core.v1.ConfigMap('after', data={'a': 'b'}, opts=after)\n"
        "pulumi.export('resources', chart.resources)\n"
    )
    done = rehearse(folder, tmp_path)
    assert done.report["ok"], done.problems
    assert done.outputs == {"resources": []}
    assert [warning.split(": ")[0] for warning in done.report["warnings"]] == [
        "kubernetes:helm.sh/v4:Chart web",
        "kubernetes:yaml/v2:ConfigGroup group",
    ]

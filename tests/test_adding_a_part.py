"""A policy, a launcher and a store are added by the edits that CONTRIBUTING.md names, and by no others.

A cloud: tests/infra/test_toy_cloud.py. A workload: tests/training/workloads/test_user_workload.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("__pycache__", "simulation", "local_cluster", "pins")

POLICY = """
TOY = Rule(
    name="toy-owner",
    statement="An owner is an address of example.com.",
    reason="It is a test.",
    fix="use an address of example.com",
    references=("none",),
    severity="low",
    checks={KMS_KEY: lambda resource: () if resource.props["owner"].endswith("@example.com") else (Violation("wrong owner"),)},
)
"""
LAUNCHER = """
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.options import LaunchOptions


class ToyOptions(LaunchOptions):
    nodes: int = 1


class Toy(Launcher[ToyOptions]):
    options_model = ToyOptions

    def check(self, recipe, target):
        pass

    def command(self, recipe, file, target):
        return ["true"]

    def render(self, recipe, target):
        return f"toy: {recipe.name} on {self.options(target).nodes} nodes"
"""
STORE = """
def _toy(url, retry):
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    return lambda: SubTreeFileSystem(os.environ["TOY_ROOT"], LocalFileSystem())
"""


@dataclass(frozen=True)
class Part:
    """What adds a part: new files, and replacements of one text by another in files that exist."""

    new: dict[str, str]
    edits: tuple[tuple[str, str, str], ...]


PARTS = {
    "policy": Part(
        {}, (("policies/naming.py", "RULES = (REQUIRED_TAGS, ", f"{POLICY}RULES = (TOY, REQUIRED_TAGS, "),)
    ),
    "launcher": Part(
        {"training/launch/toy.py": LAUNCHER},
        (
            (
                "training/launch/base.py",
                "LAUNCHERS = {\n",
                'LAUNCHERS = {\n    "toy": "trainfleet.training.launch.toy:Toy",\n',
            ),
        ),
    ),
    "store": Part(
        {},
        (
            ("training/stores/urls.py", 'SCHEMES = {"s3"', 'SCHEMES = {"toy": "toy", "s3"'),
            ("training/stores/urls.py", "BUCKET = {\n", 'BUCKET = {\n    "toy": re.compile(r"[a-z]+"),\n'),
            ("training/stores/urls.py", 'NAMES = {"s3"', 'NAMES = {"toy": "shelf", "s3"'),
            ("training/stores/clouds.py", "MAKERS: ", f"{STORE}\n\nMAKERS: "),
            ("training/stores/clouds.py", '    "az": _azure,\n', '    "az": _azure,\n    "toy": _toy,\n'),
        ),
    ),
}
USES = {
    "policy": """
from trainfleet.policies.catalogue import RULES, policy_names, theme_of
from trainfleet.policies.engine.rule import Resource, evaluate
from trainfleet.policies.resource_types import KMS_KEY
rule = next(rule for rule in RULES if rule.name == "toy-owner")
for owner in ("a@example.com", "a@b"):
    print(theme_of(rule), "toy-owner" in policy_names(), [each.message for each in evaluate(rule, Resource(KMS_KEY, "b", {"owner": owner}))])
""",
    "launcher": """
from trainfleet.__main__ import main
import sys
sys.argv[1:] = ["launch", "lm-tiny", "--on", "toy", "--print", *sys.argv[1:]]
main()
""",
    "store": """
from trainfleet.training.stores import open_store
store = open_store("toy://shelf/runs")
store.write("a/b", lambda output: output.write(b"text"))
print(store.sizes(), store.read("a/b"))
""",
}


def with_part(name: str, folder: Path) -> Path:
    """A copy of the package with the part."""
    package = folder / "trainfleet"
    shutil.copytree(ROOT / "trainfleet", package, ignore=shutil.ignore_patterns(*HEAVY))
    for path, text in PARTS[name].new.items():
        (package / path).write_text(text, encoding="utf-8")
    for path, old, new in PARTS[name].edits:
        text = (package / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path}: {old}"
        (package / path).write_text(text.replace(old, new), encoding="utf-8")
    return folder


def use(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "TOY_ROOT": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, "-c", USES[name], *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_policy_is_a_rule_in_the_module_of_its_theme(tmp_path: Path) -> None:
    done = use("policy", with_part("policy", tmp_path))
    assert done.stdout == "naming True []\nnaming True ['wrong owner']\n", done.stderr


def test_a_launcher_is_a_class_and_a_row(tmp_path: Path) -> None:
    folder = with_part("launcher", tmp_path)
    done = use("launcher", folder, "--nodes", "3")
    assert (done.returncode, done.stdout.strip()) == (0, "toy: lm-tiny on 3 nodes"), done.stderr
    done = use("launcher", folder, "--managed")
    assert done.returncode == 2
    assert "--managed" in done.stderr


def test_a_store_is_a_scheme_and_a_function(tmp_path: Path) -> None:
    folder = with_part("store", tmp_path)
    (folder / "shelf" / "runs" / "a").mkdir(parents=True)
    done = use("store", folder)
    assert done.stdout == "{'a/b': 4} b'text'\n", done.stderr


@pytest.mark.parametrize("name", sorted(PARTS))
def test_contributing_names_the_places(name: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"### A {name}\n")[2].partition("\n### ")[0]
    places = {*PARTS[name].new, *(path for path, _, _ in PARTS[name].edits)}
    missing = [
        place
        for place in places
        if Path(place).name not in section and str(Path(place).parent) not in section
    ]
    assert missing == []

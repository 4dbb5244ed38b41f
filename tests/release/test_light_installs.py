"""How large a light install is, how long it takes, and what works in one without the SDK of a cloud."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

import pytest

from tools.release import build, environments

EPOCH = 1_790_000_000
SECONDS = 30.0
"""The most that a light install takes once its packages are downloaded."""
INSTALLS = {"review": "review", **{each: f"review,{each}" for each in environments.CLOUDS}}
"""The extras of each figure in docs/figures.toml."""
SAYS_WHICH_EXTRA = (
    ("rehearse dev --until policies", 1, "trainfleet[aws]"),
    ("diff dev --base HEAD --worktree", 1, "trainfleet[aws]"),
    ("diff ../shop", 1, "trainfleet[aws]"),
    ("cost dev --plan", 1, "trainfleet[aws]"),
    ("preflight dev", 3, "trainfleet[aws]"),
    ("launch workloads/spirals.yaml", 2, "trainfleet[train]"),
)
"""Commands, their exit code, and the extra that they name."""
WORKS = (
    ("spec check dev", 0, "ok dev"),
    ("machines --cloud gcp", 0, "H100"),
    ("cost dev", 0, "EKS control plane"),
    ("cost dev --events {recordings}/log-eks-create.jsonl", 0, "EKS control plane"),
    ("policies", 0, "rules"),
    ("knowledge show aws:s3/bucket:Bucket", 0, "grants"),
    ("diff --events {recordings}/log-eks-create.jsonl", 2, "Computed by the real providers"),
    ("diff --events {recordings}/log-preview-refresh.jsonl --format html --output diff.html", 2, "1 updated"),
    ("drift --events {recordings}/log-refresh.jsonl", 3, "3 resources were read"),
    ("doctor", 3, "rehearse and diff work for: local"),
)
"""Commands that need no SDK, with what they print."""
PROGRAM = 'import pulumi_aws as aws\n\naws.sqs.Queue("jobs")\n'


@pytest.fixture(scope="module")
def distributions(root: Path, tmp_path_factory: pytest.TempPathFactory) -> build.Distributions:
    return build.build(root, tmp_path_factory.mktemp("built"), EPOCH)


def documented(root: Path, name: str) -> int:
    """The bytes of a light install as the pages state them."""
    row = tomllib.loads((root / "docs" / "figures.toml").read_text())[f"light_install_{name}"]
    return int(row["text"].removesuffix(" MB")) * 1_000_000


@pytest.mark.deep
@pytest.mark.parametrize("name", INSTALLS)
def test_a_light_install_has_the_size_that_the_pages_state(
    root: Path, distributions: build.Distributions, name: str, tmp_path: Path
) -> None:
    """And takes seconds once its packages are downloaded."""
    for each in ("first", "second"):
        where = tmp_path / each
        where.mkdir()
        made = environments.Environment(root, Path(sys.executable), where, INSTALLS[name])
        seconds = made.install(f"trainfleet[{INSTALLS[name]}] @ {distributions.wheel.as_uri()}")
        assert made.problems == []
    assert seconds < SECONDS
    assert environments.size(made.venv) == pytest.approx(documented(root, name), rel=0.05)
    assert environments.size(made.venv) < environments.MOST_BYTES


@pytest.mark.deep
def test_a_review_without_an_sdk_works_or_names_the_extra(
    root: Path, distributions: build.Distributions, tmp_path: Path
) -> None:
    where = environments.Environment(root, Path(sys.executable), tmp_path, "review")
    where.install(f"trainfleet[review] @ {distributions.wheel.as_uri()}")
    options = "--cloud aws --name demo --owner ml@example.com --public-range 203.0.113.0/24"
    words = ["init", str(where.repository), *options.split(), *environments.ANSWERS["aws"]]
    where.trainfleet(*words, says="README.md")
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "Pulumi.yaml").write_text("name: shop\nruntime: python\n")
    (shop / "Pulumi.dev.yaml").write_text("config: {}\n")
    for folder, program in ((where.repository, None), (shop, PROGRAM), (shop, f"{PROGRAM}\n")):
        if program is not None:
            (folder / "__main__.py").write_text(program)
        commit = ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "a commit"]
        for git in (["init", "-q"], ["add", "-A"], commit):
            subprocess.run(["git", *git], cwd=folder, check=True)
    recordings = root / "tests" / "rehearsal" / "diff" / "exports"
    for command, code, says in (*WORKS, *SAYS_WHICH_EXTRA):
        where.trainfleet(*command.format(recordings=recordings).split(), code=code, says=says)
    assert where.problems == []
    page = subprocess.Popen(
        [where.venv / "bin" / "trainfleet", "ui", "--no-browser", "--port", "0"],
        cwd=where.repository, env=where.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert page.stdout is not None
        address = re.search(r"http://\S+", page.stdout.readline())
        assert address is not None
        client = build_opener(ProxyHandler({}), HTTPCookieProcessor())  # the token becomes a cookie
        with client.open(address[0], timeout=30) as answer:
            assert "Trainfleet" in answer.read().decode()
    finally:
        page.kill()
        page.communicate()

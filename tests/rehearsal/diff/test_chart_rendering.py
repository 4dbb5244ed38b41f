"""`trainfleet diff` with a real helm: what two versions of a chart render, on the engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.helm_charts import (
    HELM,
    PROGRAM,
    built_helm,
    first,
    helm_version,
    package,
    second,
    served,
    write_chart,
)
from tests.rehearsal.diff.repos import Repo, make_repo

pytestmark = pytest.mark.deep
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shop(tmp_path: Path) -> Repo:
    """A project that installs a chart from its own folder."""
    source = tmp_path / "source"
    write_chart(source / "queue", first())
    (source / "Pulumi.yaml").write_text("name: shop\nruntime: python\n")
    (source / "Pulumi.prod.yaml").write_text("config: {}\n")
    (source / "__main__.py").write_text(PROGRAM.format(source='chart="./queue",', replicas=1))
    return make_repo(tmp_path / "shop", source)


@pytest.fixture
def diff(shop: Repo, trainfleet: Run, cache_home: Path, tmp_path: Path) -> Run:
    """Call `trainfleet diff . ARGUMENTS` with the built helm on PATH, and caches of its own."""
    settings = {
        "PATH": f"{built_helm()}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(cache_home),
        "HELM_CACHE_HOME": str(tmp_path / "helm"),
        "HELM_CONFIG_HOME": str(tmp_path / "helm"),
    }

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return trainfleet("diff", ".", "--worktree", *arguments, cwd=shop.root, **settings, **environment)

    return call


def objects(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The changed objects of the only chart, by kind and name."""
    (chart,) = document["charts"]
    return {f"{each['type'].rsplit(':', 1)[-1]} {each['name']}": each for each in chart["changes"]}


def test_the_built_helm_is_the_pinned_one() -> None:
    assert HELM.startswith("v3.")
    assert helm_version(built_helm()).startswith("v3.")


def test_another_version_in_the_project_shows_what_it_renders(shop: Repo, diff: Run) -> None:
    write_chart(shop.root / "queue", second())
    done = diff("--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    found = objects(document)
    assert {name: each["verb"] for name, each in found.items()} == {
        "ClusterRole queue-reader": "create",
        "ClusterRoleBinding queue-reader": "create",
        "CustomResourceDefinition flavors.example.com": "update",
        "CustomResourceDefinition loads.example.com": "update",
        "CustomResourceDefinition queues.example.com": "delete",
        "StatefulSet queue-db": "replace",
    }
    assert found["CustomResourceDefinition queues.example.com"]["loss"]["kinds"] == ["data", "work"]
    assert found["StatefulSet queue-db"]["forced_by"] == ["spec.selector.matchLabels.app"]
    assert not found["CustomResourceDefinition flavors.example.com"]["applied"]
    assert found["CustomResourceDefinition loads.example.com"]["destructive"]
    (chart,) = document["charts"]
    assert (chart["before"], chart["after"]) == ("1.0.0", "2.0.0")
    assert chart["images"] == {"removed": ["example.com/db:1.0"], "added": ["example.com/db:2.0"]}
    assert chart["labels_only"] == 1  # the Secret: its value is random
    assert "Secret token" in chart["notes"][1]
    assert [each["text"] for each in document["access"]] == [
        "service account jobs/queue can now read secrets in every namespace (get)"
    ]
    assert "in charts: 2 created" in document["blast_radius"]
    assert "LOSES DATA: queues.example.com" in document["blast_radius"]
    assert [step["when"] for step in document["procedure"]] == ["before", "before"]
    assert "planted-81c3" not in done.stdout


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_every_format_shows_the_objects(form: str, shop: Repo, diff: Run) -> None:
    write_chart(shop.root / "queue", second())
    done = diff("--format", form)
    assert done.returncode == 3, done.stderr
    plain = " ".join(done.stdout.replace("\\_", "_").split())
    for text in (
        "In charts",
        "queue 1.0.0 → 2.0.0",
        "StatefulSet queue-db",
        "LOSES DATA",
        "example.com/db:2.0",
    ):
        assert text in plain, done.stdout


def test_random_values_alone_change_nothing(shop: Repo, diff: Run) -> None:
    (shop.root / "queue" / "README.md").write_text("another file of the chart\n")
    shop.git("add", "-A")
    done = diff("--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["charts"][0]["changes"] == []


def test_values_are_rendered(shop: Repo, diff: Run) -> None:
    shop.replace("__main__.py", '"replicas": 1', '"replicas": 3')
    done = diff("--json")
    assert done.returncode == 2, done.stderr
    found = objects(json.loads(done.stdout))
    (properties,) = [each["properties"] for name, each in found.items() if name.startswith("StatefulSet")]
    assert properties == [{"path": "spec.replicas", "old": 1, "new": 3, "forces": False}]


def test_a_values_file_is_read_next_to_the_program(shop: Repo, diff: Run) -> None:
    files = 'chart="./queue", value_yaml_files=[pulumi.FileAsset("values.prod.yaml")],'
    text = PROGRAM.format(source=files, replicas=1).replace('"replicas": 1, ', "")
    shop.write("__main__.py", text)
    shop.write("values.prod.yaml", "replicas: 1\n")
    shop.commit()
    shop.write("values.prod.yaml", "replicas: 2\n")
    done = diff("--json")
    assert done.returncode == 2, done.stderr
    assert objects(json.loads(done.stdout))["StatefulSet queue-db"]["properties"] == [
        {"path": "spec.replicas", "old": 1, "new": 2, "forces": False}
    ]


def test_a_chart_that_helm_rejects_is_named_with_the_reason(shop: Repo, diff: Run) -> None:
    (shop.root / "queue" / "templates" / "db.yaml").write_text('{{ fail "replicas must be odd" }}\n')
    done = diff()
    assert done.returncode == 0, done.stderr
    assert "Not rendered: queue (its files): helm cannot render it" in done.stdout
    assert "replicas must be odd" in done.stdout


def test_a_repository_is_asked_only_with_charts(shop: Repo, diff: Run, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    package(repository, first(), "1.0.0")
    package(repository, second(), "2.0.0")
    with served(repository) as url:
        source = 'chart="queue", version="{version}", repository_opts={{"repo": "' + url + '"}},'
        texts = [
            PROGRAM.format(source=source.format(version=each), replicas=1) for each in ("1.0.0", "2.0.0")
        ]
        (shop.root / "__main__.py").write_text(texts[0])
        shop.commit()
        (shop.root / "__main__.py").write_text(texts[1])
        without = diff()
        assert without.returncode == 2, without.stderr
        assert "Not rendered: queue (version 1.0.0 → 2.0.0)" in without.stdout
        assert "--charts lets helm download it" in without.stdout
        asked = diff("--charts", "--json")
        assert asked.returncode == 3, asked.stderr
        assert objects(json.loads(asked.stdout))["StatefulSet queue-db"]["verb"] == "replace"
    kept = diff("--json")  # the server is gone
    assert objects(json.loads(kept.stdout)) == objects(json.loads(asked.stdout))


def test_a_repository_that_does_not_answer_is_the_reason(shop: Repo, diff: Run) -> None:
    source = 'chart="queue", version="1.0.{}", repository_opts={{"repo": "http://127.0.0.1:9"}},'
    (shop.root / "__main__.py").write_text(PROGRAM.format(source=source.format(0), replicas=1))
    shop.commit()
    shop.replace("__main__.py", "1.0.0", "1.0.1")
    done = diff("--charts")
    assert done.returncode == 2, done.stderr
    assert "helm cannot download it" in done.stdout

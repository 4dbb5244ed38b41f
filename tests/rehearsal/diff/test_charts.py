"""Which charts a diff renders, where it finds them, and what it says of those that it cannot render."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.diff.change import Change, Property, Verb
from trainfleet.rehearsal.diff.charts import ChartSide, ComparedCharts, chart_notes, compare_charts
from trainfleet.rehearsal.diff.helm import command
from trainfleet.rehearsal.diff.helm.chart import (
    CHART,
    RELEASE,
    SECRET_MARK,
    Chart,
    NotRenderedError,
    api_versions,
    charts_of,
    kubernetes_version,
    planned_charts,
    with_texts,
)
from trainfleet.rehearsal.diff.helm.find import Folders, find
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN, secret

FAKE = """#!/bin/sh
{body}
"""


def change(
    name: str, *properties: tuple[str, object, object], token: str = RELEASE, verb: Verb = Verb.UPDATE
) -> Change:
    found = tuple(Property(path, old, new, forces=False) for path, old, new in properties)
    return Change(verb, f"urn:pulumi:one::tiny::{token}::{name}", token, name, found, (), None)


def chart(source: str = "./queue", version: str = "", repository: str = "", **settings: Any) -> Chart:
    urn = f"urn:pulumi:one::tiny::{RELEASE}::queue"
    return Chart(urn, RELEASE, source, version, repository, "queue", "jobs", **settings)


def helm(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a script in place of helm on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / "helm").write_text(FAKE.format(body=body))
    (folder / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (change("kueue", ("version", "0.14.0", "0.15.0")), "kueue (version 0.14.0 → 0.15.0)"),
        (change("kueue", ("version", None, "0.15.0")), "kueue (version none → 0.15.0)"),
        (change("kueue", ("values.replicas", 1, 2)), "kueue (values)"),
        (change("kueue", ("namespace", "a", "b"), verb=Verb.REPLACE), "kueue (namespace)"),
        (change("kueue", verb=Verb.CREATE), "kueue (new)"),
        (change("kueue", verb=Verb.DELETE), "kueue (deleted)"),
        (
            change(
                "kueue", ("chart", "a", "b"), ("valueYamlFiles[0]", "x", "y"), token=CHART, verb=Verb.REPLACE
            ),
            "kueue (chart a → b, values)",
        ),
    ],
    ids=["version", "first version", "values", "namespace", "new", "deleted", "chart of v4"],
)
def test_a_changed_chart_is_named_with_what_is_not_compared(found: Change, named: str) -> None:
    (note,) = chart_notes([found], "a recording does not contain them")
    assert f"Not rendered: {named}: a recording does not contain them. Of it, version" in note
    assert "CustomResourceDefinitions" in note


@pytest.mark.parametrize(
    "found",
    [
        change("kueue", ("timeout", 300, 600)),
        change("map", ("data.version", "1", "2"), token="kubernetes:core/v1:ConfigMap"),
    ],
    ids=["another setting", "no chart"],
)
def test_what_is_compared_in_full_has_no_note(found: Change) -> None:
    assert chart_notes([found], "why") == []


def test_all_charts_with_one_reason_are_in_one_note() -> None:
    (note,) = chart_notes([change("b", ("version", "1", "2")), change("a", ("values.x", 1, 2))], "why")
    assert "Not rendered: a (values), b (version 1 → 2): why. Of them" in note


class TestFind:
    """Where a chart is looked for, and why it is not rendered."""

    @pytest.fixture(autouse=True)
    def caches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HELM_CACHE_HOME", str(tmp_path / "helm"))
        monkeypatch.delenv("HELM_REPOSITORY_CACHE", raising=False)

    def folders(self, top: Path) -> Folders:
        project = top / "checkout" / "infra"
        (project / "charts" / "queue").mkdir(parents=True)
        (top / "checkout" / "shared").mkdir()
        return Folders(project, top / "checkout", project)

    def found(self, each: Chart, folders: Folders, scratch: Path) -> str:
        try:
            return str(find(each, folders, download=False, scratch=scratch))
        except NotRenderedError as error:
            return f"{error.why}; {error.fix}"

    @pytest.mark.parametrize("source", ["./charts/queue", "charts/queue", "../shared"])
    def test_a_local_chart_is_relative_to_the_project(self, source: str, tmp_path: Path) -> None:
        folders = self.folders(tmp_path)
        assert self.found(chart(source), folders, tmp_path).startswith(str(tmp_path / "checkout"))

    @pytest.mark.parametrize("source", ["../../secret", "/etc/hostname", "./charts/queue"])
    def test_a_chart_may_not_leave_the_repository(self, source: str, tmp_path: Path) -> None:
        folders = self.folders(tmp_path)
        (tmp_path / "secret").mkdir()
        (tmp_path / "checkout/infra/charts/queue/values.yaml").symlink_to("/etc/hostname")
        assert "outside the repository" in self.found(chart(source), folders, tmp_path)

    @pytest.mark.parametrize(
        ("each", "why"),
        [
            (chart("./gone"), "`./gone` is not among the files of this side; "),
            (chart(""), "its source is not known before the apply; "),
            (chart(unsupported="postrender"), "its `postrender` is a command, which a diff does not run; "),
            (chart("kueue", "1.2.3", "https://example.com"), "; --charts lets helm download it"),
            (chart("oci://example.com/kueue", "1.2.3"), "; --charts lets helm download it"),
            (chart("stable/kueue", "1.2.3"), "; --charts lets helm download it"),
        ],
        ids=["no file", "unknown", "post-renderer", "repository", "registry", "configured repository"],
    )
    def test_the_reason_says_what_is_missing(self, each: Chart, why: str, tmp_path: Path) -> None:
        assert why in self.found(each, self.folders(tmp_path), tmp_path)

    def test_an_export_has_no_local_charts(self, tmp_path: Path) -> None:
        assert "the export does not contain" in self.found(chart(), Folders(), tmp_path)

    def test_an_exact_version_is_taken_from_helms_cache(self, tmp_path: Path) -> None:
        kept = tmp_path / "helm" / "repository" / "kueue-1.2.3.tgz"
        kept.parent.mkdir(parents=True)
        kept.touch()
        folders = self.folders(tmp_path)
        assert self.found(chart("kueue", "1.2.3", "https://example.com"), folders, tmp_path) == str(kept)
        assert "--charts" in self.found(chart("kueue", "1.2.x", "https://example.com"), folders, tmp_path)

    def test_a_name_that_looks_like_an_option_is_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        helm(tmp_path / "bin", monkeypatch, f'printf "%s\\n" "$@" > {tmp_path}/arguments; exit 1')
        with pytest.raises(NotRenderedError, match="cannot download"):
            find(chart("--post-renderer=x", "1", "https://a"), Folders(), download=True, scratch=tmp_path)
        assert (tmp_path / "arguments").read_text().splitlines()[-2:] == ["--", "--post-renderer=x"]


class TestInputs:
    """What a chart is rendered with."""

    def test_secrets_and_unknown_values_are_left_out(self) -> None:
        inputs = {"chart": "a", "values": {"a": {"password": secret("planted")}, "b": [UNKNOWN, 1.0]}}
        ((_, found),) = charts_of([{"urn": "u::a", "type": RELEASE, "inputs": inputs}]).items()
        assert found.values["a"] == {"password": SECRET_MARK}
        assert found.left_out == ("a.password", "b[0]")
        assert found.values["b"][1] == 1
        assert "planted" not in repr(found)

    def test_the_text_of_a_values_file_is_taken_from_the_side_that_has_it(self) -> None:
        asset = {SIGNATURE: "c44067f5952c0a294b673a41bacd8c17", "hash": "h"}
        urn = "u::a"
        sides = [
            {"chart": "a", "valueYamlFiles": [asset | {"text": text}]}
            for text in ("x: 1", "<contents elided>")
        ]
        old = charts_of([{"urn": urn, "type": RELEASE, "inputs": sides[0]}])
        new = planned_charts([{"urn": urn, "type": RELEASE, "op": "update", "new": {"inputs": sides[1]}}])
        assert new[urn].files[0].text is None
        assert with_texts(new, old.values())[urn].files[0].text == "x: 1"

    def test_the_cluster_of_the_stack_decides_the_version(self) -> None:
        eks = {"type": "aws:eks/cluster:Cluster", "inputs": {"version": "1.33"}}
        assert kubernetes_version([eks]) == "1.33"
        assert not kubernetes_version([eks, eks | {"inputs": {"version": "1.34"}}])
        assert not kubernetes_version([eks | {"inputs": {"version": UNKNOWN}}])

    def test_definitions_and_custom_objects_are_known_to_the_chart(self) -> None:
        spec = {"group": "a.io", "names": {"kind": "Q"}, "versions": [{"name": "v1", "served": True}]}
        found = api_versions(
            [
                {
                    "type": "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
                    "inputs": {"spec": spec},
                },
                {"type": "kubernetes:ray.io/v1:RayCluster", "inputs": {}},
                {"type": "kubernetes:apps/v1:Deployment", "inputs": {}},
            ]
        )
        assert found == ["a.io/v1", "a.io/v1/Q", "ray.io/v1", "ray.io/v1/RayCluster"]


class TestCommand:
    """A rendering ends, is of a limited size, and has nothing of the user's settings and network."""

    def test_it_is_killed_after_its_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helm(tmp_path / "bin", monkeypatch, "sleep 60")
        with pytest.raises(NotRenderedError, match="`helm template` takes longer than 0 s"):
            command.run_helm(["template"], 0.3, tmp_path)

    def test_its_output_is_limited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helm(tmp_path / "bin", monkeypatch, "yes")
        monkeypatch.setattr(command, "MOST_BYTES", 1 << 20)
        with pytest.raises(NotRenderedError, match="writes more than 1 MiB"):
            command.run_helm(["template"], 20, tmp_path)

    def test_it_has_a_clean_home_and_no_network(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
        probe = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
        helm(tmp_path / "bin", monkeypatch, f'env; python3 -c "{probe}" 2>&1 | tail -1')
        done = command.run_helm(["template"], 20, tmp_path)
        assert f"HELM_CACHE_HOME={tmp_path}" in done.output
        assert "planted" not in done.output
        assert "Permission denied" in done.output

    def test_without_helm_the_reason_is_that(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NotRenderedError, match="helm is not on PATH"):
            command.run_helm(["template"], 1, tmp_path)


class TestCompare:
    """From two checkouts to what differs, with a recorded rendering."""

    RECORDED = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {%s}\n"

    def compared(self, tmp_path: Path, texts: tuple[str, str], *changes: Change) -> ComparedCharts:
        sides = []
        for label, text in zip(("base", "head"), texts, strict=True):
            folder = tmp_path / label / "queue"
            folder.mkdir(parents=True)
            (folder / "out").write_text(text)
            one = chart()
            sides.append(ChartSide({one.urn: one}, Folders(tmp_path / label, tmp_path / label)))
        return compare_charts(sides[0], sides[1], changes, [], tmp_path, download=False)

    @pytest.fixture(autouse=True)
    def recorded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helm(tmp_path / "bin", monkeypatch, 'for last; do :; done; cat "$last/out"')

    def test_other_files_of_a_local_chart_are_a_change(self, tmp_path: Path) -> None:
        found = self.compared(tmp_path, (self.RECORDED % "a: 1", self.RECORDED % "a: 2"))
        assert [each.objects[0].change.name for each in found.diffs] == ["settings"]
        assert found.notes == (
            "Charts are rendered for the Kubernetes version that helm was built for: the stack has no cluster.",
        )

    def test_the_same_files_are_not_rendered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helm(tmp_path / "bin", monkeypatch, "exit 1")
        assert self.compared(tmp_path, (self.RECORDED % "a: 1", self.RECORDED % "a: 1")) == ComparedCharts()

    def test_random_values_of_a_rendering_change_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line = 'sed "s/NOW/$(date +%N)/" "$last/out"'
        helm(tmp_path / "bin", monkeypatch, f"for last; do :; done; {line}")
        one, two = self.RECORDED % "a: NOW, b: 1", self.RECORDED % "a: NOW, b: 2"
        more = "---\n" + self.RECORDED.replace("settings", "run-NOW") % "a: 1"
        (found,) = self.compared(tmp_path, (one + more, two + more)).diffs
        (settings,) = found.objects
        assert [each.path for each in settings.change.properties] == ["data.b"]
        assert found.notes == (
            "random in each rendering, and not compared: values of ConfigMap settings",
            "not compared: 1 object with a random name",
        )

    def test_what_helm_says_is_the_reason(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        helm(tmp_path / "bin", monkeypatch, "echo 'Error: values do not meet the schema' >&2; exit 1")
        found = self.compared(tmp_path, ("", ""), change("queue", ("values.x", 1, 2)))
        assert not found.diffs
        assert "Not rendered: queue (values): helm cannot render it: values do not meet" in found.notes[0]

    @pytest.mark.parametrize(
        "text", ["a: [", "a: &a [x]\nb: " + "[" * 300, "\t- a"], ids=["open", "deep", "tab"]
    )
    def test_what_is_not_yaml_is_the_reason(self, text: str, tmp_path: Path) -> None:
        found = self.compared(tmp_path, (text, text), change("queue", ("values.x", 1, 2)))
        assert "renders is not YAML" in found.notes[0]

"""What differs between two renderings of a chart, and what Helm makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.diff.change import Verb
from trainfleet.rehearsal.diff.chart_rows import chart_rows
from trainfleet.rehearsal.diff.helm.chart import CHART, RELEASE, Chart
from trainfleet.rehearsal.diff.helm.comparison import HOOK, IN_CRDS, SKIPPED, STAYS, ChartDiff, compared
from trainfleet.rehearsal.diff.helm.steps import chart_steps
from trainfleet.rehearsal.diff.helm.template import Rendered, Rendering, objects_of

URN = "urn:pulumi:one::web::kubernetes:helm.sh/v3:Release::queue"


def chart(token: str = RELEASE, **settings: Any) -> Chart:
    return Chart(URN, token, "./queue", "", "", "queue", "jobs", **settings)


def rendering(*documents: str, crds: str = "", of: Chart | None = None) -> Rendering:
    """The rendering that helm would print: each document from the templates, `crds` from the crds folder."""
    text = "".join(f"---\n# Source: queue/templates/{n}.yaml\n{each}\n" for n, each in enumerate(documents))
    text += f"---\n# Source: queue/crds/all.yaml\n{crds}\n" if crds else ""
    return Rendering(objects_of(text, of or chart()), version="1.0.0")


def definition(*versions: str, annotation: str = "") -> str:
    parts = ", ".join(
        f"{{name: {each}, served: true, storage: {str(each == 'v1').lower()}}}" for each in versions
    )
    note = f", annotations: {{helm.sh/resource-policy: {annotation}}}" if annotation else ""
    return (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
        f"metadata: {{name: queues.example.com{note}}}\n"
        f"spec: {{group: example.com, names: {{kind: Queue, plural: queues}}, versions: [{parts}]}}"
    )


def workload(kind: str = "StatefulSet", app: str = "db", image: str = "db:1", label: str = "1") -> str:
    return (
        f"apiVersion: apps/v1\nkind: {kind}\n"
        f"metadata: {{name: db, labels: {{helm.sh/chart: queue-{label}}}}}\n"
        f"spec: {{selector: {{matchLabels: {{app: {app}}}}}, template: {{metadata: {{labels: {{app: {app}}}}},"
        f" spec: {{containers: [{{name: db, image: '{image}'}}]}}}}}}"
    )


def hook(image: str) -> str:
    return (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate, annotations: {helm.sh/hook: pre-upgrade}}\n"
        f"spec: {{template: {{spec: {{containers: [{{name: a, image: '{image}'}}]}}}}}}"
    )


def settings(data: str, extra: str = "") -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\n{extra}\ndata: {{a: {data}}}"


def of(before: Rendering, after: Rendering, token: str = RELEASE, **options: Any) -> ChartDiff:
    return compared(chart(token, **options), chart(token, **options), before, after, [])


def test_another_selector_replaces_and_helm_refuses_it() -> None:
    found = of(rendering(workload()), rendering(workload(app="database")))
    (each,) = found.objects
    assert (each.change.verb, each.change.forced_by) == (Verb.REPLACE, ("spec.selector.matchLabels.app",))
    assert each.change.destructive
    assert "Helm's upgrade fails" in each.note
    assert [step.what for step in chart_steps([found])] == [
        "delete StatefulSet db of queue (--cascade=orphan keeps its pods)"
    ]


def test_pulumi_replaces_the_same_object_of_a_chart_resource() -> None:
    (each,) = of(rendering(workload()), rendering(workload(app="database")), CHART).objects
    assert (each.change.verb, each.note) == (Verb.REPLACE, "")


def test_a_removed_definition_loses_the_objects_of_its_kind() -> None:
    (each,) = of(rendering(definition("v1")), rendering()).objects
    assert (each.change.verb, each.change.destructive) == (Verb.DELETE, True)
    assert each.change.loss is not None
    assert each.change.loss.kinds[0] == "data"


def test_a_definition_that_the_chart_keeps_is_left_behind() -> None:
    (each,) = of(rendering(definition("v1", annotation="keep")), rendering()).objects
    assert (each.change.verb, each.change.kept, each.change.destructive) == (Verb.DELETE, True, True)


@pytest.mark.parametrize(
    ("before", "after", "options", "note"),
    [
        (("v1",), ("v1", "v2"), {}, IN_CRDS),
        (("v1",), ("v1", "v2"), {"skip_crds": True}, SKIPPED),
        (("v1",), (), {}, STAYS),
        ((), ("v1",), {}, IN_CRDS),
    ],
    ids=["changed", "changed and skipped", "removed", "new in an upgrade"],
)
def test_helm_does_not_apply_what_is_in_the_crds_folder(
    before: tuple[str, ...], after: tuple[str, ...], options: dict[str, Any], note: str
) -> None:
    one, two = (rendering(crds=definition(*each) if each else "") for each in (before, after))
    found = of(one, two, **options)
    (each,) = found.objects
    assert (each.note, each.applied, found.changes) == (note, False, ())
    assert bool(chart_steps([found])) is (note == IN_CRDS)


def test_a_chart_resource_applies_its_crds_folder() -> None:
    (each,) = of(rendering(crds=definition("v1")), rendering(), CHART).objects
    assert (each.change.destructive, each.applied) == (True, True)


def test_a_new_release_installs_its_crds_folder() -> None:
    found = compared(None, chart(), Rendering({}), rendering(crds=definition("v1")), [])
    assert [(each.change.verb, each.applied) for each in found.objects] == [(Verb.CREATE, True)]


def test_a_definition_that_moves_to_the_crds_folder_is_deleted() -> None:
    (each,) = of(rendering(definition("v1")), rendering(crds=definition("v1"))).objects
    assert (each.change.verb, each.change.destructive) == (Verb.DELETE, True)
    assert "does not create it again" in each.note


def test_a_definition_that_moves_out_of_the_crds_folder_is_not_adopted() -> None:
    (each,) = of(rendering(crds=definition("v1")), rendering(definition("v1", "v2"))).objects
    assert each.applied
    assert "does not adopt" in each.note


def test_a_hook_is_recreated_and_loses_nothing() -> None:
    (each,) = of(rendering(hook("a:1")), rendering(hook("a:2"))).objects
    assert (each.change.verb, each.change.destructive, each.note) == (Verb.UPDATE, False, HOOK)
    assert not objects_of("# Source: a\n" + hook("a:1"), chart(CHART))


@pytest.mark.parametrize(
    ("token", "extra", "verb"),
    [(RELEASE, "", Verb.UPDATE), (CHART, "", Verb.REPLACE), (RELEASE, "immutable: true", Verb.REPLACE)],
    ids=["helm patches it", "pulumi replaces it", "it is immutable"],
)
def test_settings_are_patched_by_helm_unless_they_are_immutable(token: str, extra: str, verb: Verb) -> None:
    (each,) = of(rendering(settings("1", extra)), rendering(settings("2", extra)), token).objects
    assert (each.change.verb, each.change.destructive) == (verb, False)


def test_objects_of_which_only_the_version_label_changes_are_counted() -> None:
    found = of(rendering(workload()), rendering(workload(label="2")))
    assert (found.objects, found.labels_only, found.restarted) == ((), 1, ())


def test_an_image_is_listed_and_the_pods_are_replaced() -> None:
    found = of(rendering(workload("Deployment")), rendering(workload("Deployment", image="db:2")))
    assert found.images == (("db:1",), ("db:2",))
    assert found.restarted == ("Deployment db",)


def test_items_with_names_are_compared_by_name() -> None:
    (each,) = of(rendering(definition("v1beta1", "v1")), rendering(definition("v1"))).objects
    assert {(one.path, one.old) for one in each.change.properties} == {
        ("spec.versions[1].name", "v1beta1"),
        ("spec.versions[1].served", True),
        ("spec.versions[1].storage", False),
    }
    assert each.change.destructive


def test_secret_data_is_not_shown() -> None:
    old, new = (
        rendering(f"apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\ndata: {{key: planted{n}}}")
        for n in (1, 2)
    )
    assert "planted" not in str([*chart_rows([of(old, new)])])


def test_the_objects_of_a_list_are_compared_one_by_one() -> None:
    listed = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"
    assert [each.key[3] for each in rendering(listed).objects.values()] == ["a"]


def test_rows_put_losses_first_and_what_is_alike_together() -> None:
    names = [f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a{n}}}" for n in range(9)]
    found = of(rendering(definition("v1")), rendering(*names))
    rows = [*chart_rows([found])]
    assert [row[1] for row in rows] == [
        "CustomResourceDefinition queues.example.com",
        "ConfigMap ×9 a0, a1, a2, a3, a4, a5 and 3 more",
    ]
    assert rows[0][2].startswith("LOSES DATA")


def test_a_release_that_is_replaced_replaces_its_objects() -> None:
    same = rendering(workload())
    found = compared(chart(), chart(), same, same, [], replaced=True)
    assert [(each.change.verb, each.note) for each in found.objects] == [(Verb.REPLACE, "")]


def test_a_rendered_object_has_the_type_of_a_plain_resource() -> None:
    tokens = [each.token for each in rendering(workload(), settings("1")).objects.values()]
    assert tokens == ["kubernetes:apps/v1:StatefulSet", "kubernetes:core/v1:ConfigMap"]
    assert isinstance(next(iter(rendering(workload()).objects.values())), Rendered)

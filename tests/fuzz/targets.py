"""What is fuzzed: for each reader of input that somebody else writes, strategies for its input and the call.

A call returns for accepted input, and raises `TrainfleetError` (or what the target names) for rejected input.
"""

from __future__ import annotations

import functools
import json
import tomllib
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.fuzz import hostile, http_targets, launch_targets, provider_targets
from tests.fuzz.target import Target, written

ROOT = Path(__file__).parents[2]
EXPORTS = ROOT / "tests" / "rehearsal" / "diff" / "exports"


def _stacks() -> list[Any]:
    return [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))]


def _recipes() -> list[Any]:
    return [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "recipes").glob("*.yaml"))]


def _spec(raw: bytes, folder: Path) -> object:
    from trainfleet.infra.spec.load import load_stack

    return load_stack(str(written("Pulumi.fuzz.yaml", raw, folder)), folder, warn=lambda _: None)


def _spec_setting(setting: str, folder: Path) -> object:
    from trainfleet.infra.spec.load import load_stack

    return load_stack("aws-dev", ROOT, [setting], warn=lambda _: None)


def _recipe(raw: bytes, folder: Path) -> object:
    from trainfleet.training.recipe.load import load_recipe

    return load_recipe(written("recipe.yaml", raw, folder))


def _recipe_setting(setting: str, folder: Path) -> object:
    from trainfleet.training.recipe.load import load_recipe

    name, _, value = setting.partition("=")
    variable = "TRAINFLEET_" + name.upper().replace(".", "__")
    return load_recipe("lm-tiny", [setting]), load_recipe("lm-tiny", env={variable: value})


def _contract(raw: bytes, folder: Path) -> object:
    from trainfleet.infra.outputs.contract import load_outputs

    return load_outputs(written("outputs.json", raw, folder))


def _contracts() -> list[Any]:
    from trainfleet.infra.outputs.from_spec import outputs_from_spec

    found = [outputs_from_spec(name).model_dump(mode="json") for name in ("aws-prod", "local")]
    return [*found, {"platform": found[0]}]


def _export(raw: bytes, folder: Path) -> object:
    from trainfleet.rehearsal.diff import exports

    export = exports.read(written("export.json", raw, folder))
    return export.notes(), exports.renamed(export, "other", "stack"), export.document


def _events(raw: bytes, folder: Path) -> object:
    from trainfleet.rehearsal.diff import output, real_preview

    found = real_preview.diff_of(written("events.jsonl", raw, folder))
    return [
        output.text_of(found, form).encode()
        for form in ("table", "json", "markdown", "html", "sarif", "junit")
    ]


def _rehearsal_toml(raw: bytes, folder: Path) -> object:
    from trainfleet.rehearsal import accepted

    written(accepted.FILE, raw, folder)
    found = accepted.read(folder)
    found.accepting("aws:s3/bucket:Bucket", "tags", "x")
    found.answer("aws:index/getRegion:getRegion", {"name": "x"})
    return found.outputs("aws:s3/bucket:Bucket", "x")


def _settings(setting_paths: list[str]) -> st.SearchStrategy[str]:
    names = st.one_of(st.sampled_from(setting_paths), st.sampled_from(hostile.TEXTS), st.text(max_size=20))
    written = st.one_of(
        st.sampled_from(hostile.HOSTILE_YAML),
        st.sampled_from(hostile.TEXTS),
        hostile.values().map(functools.partial(json.dumps, default=str)),
        st.text(max_size=20),
    )
    return st.builds("{}={}".format, names, st.one_of(st.sampled_from(("2", "0.001", "null")), written))


SPEC_PATHS = ["gpu_pools[0].max_nodes", "kubernetes.version", "tags", "network", "layer", "gpu_pools", "name"]
RECIPE_PATHS = ["optimizer.lr", "workload", "workload.name", "data", "scaling.workers", "name", "batch"]
TOML = """
[[accept]]
type = "aws:s3/bucket:Bucket"
property = "tags"
value = 1
reason = "it is so"
until = 2030-01-31
[[answer]]
function = "aws:index/getRegion:getRegion"
args = { name = "x" }
result = { id = "y" }
[[answer]]
type = "aws:s3/bucket:Bucket"
name = "x"
outputs = { arn = "z" }
[[stack]]
name = "a/b/c"
outputs = { vpc = "v" }
"""


def _toml(value: Any) -> str:
    from trainfleet.rehearsal.accepted import _toml

    return _toml(value)


def _as_toml(document: Any) -> bytes:
    """Rows as TOML, as far as they can be written."""
    lines = []
    for table, rows in document.items() if isinstance(document, dict) else ():
        for row in rows if isinstance(rows, list) else [rows]:
            lines.append(f"[[{json.dumps(str(table))}]]")
            items = row.items() if isinstance(row, dict) else ()
            lines += [f"{json.dumps(str(key))} = {json.dumps(value, default=str)}" for key, value in items]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_files() -> st.SearchStrategy[bytes]:
    document = tomllib.loads(TOML)
    odd = (
        "a = " + "[" * 20_000,
        "a." * 5_000 + "b = 1",
        "a = 1" + "0" * 5_000,
        "accept = [1]",
        "[[accept]]\n" * 3,
        "[[stack]]\nname = 'x'\nprogram = '" + hostile.PATHS[0] + "'",
        "[[stack]]\nname = 'x'\nprogram = 'a\\u0000b'".replace("'", '"'),
        "[[accept]]\ntype = '*'\nreason = 'r'\nuntil = 2026-11-26T00:00:00",
        "[[accept]]\ntype = '*'\nreason = 'r'\nuntil = '\u0662026-01-01'",
        "[[accept]]\ntype = '" + "*a" * 60 + "'\nreason = 'r'",
        "[[answer]]\nfunction = 1\nresult = 2\nname = 3",
        "accept = {}",
    )
    return st.one_of(
        hostile.mutated((document,)).map(_as_toml),
        st.just(TOML).flatmap(hostile.flipped),
        st.sampled_from(odd).map(str.encode),
        st.binary(max_size=100),
    )


def _exports() -> list[Any]:
    found = []
    for file in sorted(EXPORTS.glob("*.json")):
        document = json.loads(file.read_text())
        resources = (document.get("deployment") or {}).get("resources")
        if isinstance(resources, list):
            document["deployment"]["resources"] = resources[:8]
            found.append(document)
    return found[:4]


URN = "urn:pulumi:dev::project::aws:s3/bucketV2:BucketV2::runs"
STEP = {
    "op": "update",
    "urn": URN,
    "type": "aws:s3/bucketV2:BucketV2",
    "old": {"type": "aws:s3/bucketV2:BucketV2", "inputs": {"bucket": "a"}, "outputs": {}},
    "new": {"type": "aws:s3/bucketV2:BucketV2", "inputs": {"bucket": "b"}, "outputs": {}},
    "detailedDiff": {"bucket": {"diffKind": "update", "inputDiff": True}},
    "diffs": ["bucket"],
    "keys": [],
}
POLICY = {
    "resourceUrn": URN,
    "message": "m",
    "policyName": "p",
    "policyPackName": "k",
    "enforcementLevel": "mandatory",
}
DIGEST = {
    "steps": [
        {
            "op": "update",
            "urn": URN,
            "oldState": STEP["old"],
            "newState": STEP["new"],
            "detailedDiff": {"bucket": {"kind": "update", "inputDiff": True}},
            "diffReasons": ["bucket"],
        }
    ],
    "diagnostics": [{"severity": "error", "message": "x", "urn": URN}],
    "changeSummary": {"update": 1},
}
EVENTS = [
    {"sequence": 1, "resourcePreEvent": {"metadata": STEP}},
    {"sequence": 2, "policyEvent": POLICY},
    {"sequence": 3, "diagnosticEvent": {"severity": "error", "message": "x", "urn": URN}},
    {"sequence": 4, "summaryEvent": {"resourceChanges": {"update": 1}}},
]


def _as_lines(document: Any) -> bytes:
    events = document if isinstance(document, list) else [document]
    return "\n".join(map(json.dumps, events)).encode()


def _event_files() -> st.SearchStrategy[bytes]:
    return st.one_of(
        hostile.mutated((EVENTS,)).map(_as_lines),
        hostile.json_files(DIGEST, {"events": EVENTS}),
        st.just(_as_lines(EVENTS).decode()).flatmap(hostile.flipped),
    )


TARGETS: dict[str, Target] = {
    "spec": Target(
        "a stack file",
        lambda: hostile.yaml_files(*_stacks()),
        _spec,
        examples=(b"a: !!timestamp nothing", b"a: !<tag:yaml.org,2002:int> ''"),
    ),
    "spec-setting": Target(
        "`--set` of a stack",
        lambda: _settings(SPEC_PATHS),
        _spec_setting,
        examples=("tags=!!timestamp x", "gpu_pools=!!set {a, b}"),
    ),
    "recipe": Target(
        "a recipe",
        lambda: hostile.yaml_files(*_recipes()),
        _recipe,
        examples=(hostile.LAUGHS.encode(), b"a: 2026-99-99", b"? [a, b]\n: c\n"),
    ),
    "recipe-setting": Target(
        "`key=value` and variables of a recipe",
        lambda: _settings(RECIPE_PATHS),
        _recipe_setting,
        examples=("[one]=1", "name=!!timestamp nothing"),
    ),
    "contract": Target("a platform's outputs", lambda: hostile.json_files(*_contracts()), _contract),
    "export": Target("the state for `diff --state`", lambda: hostile.json_files(*_exports()), _export),
    "events": Target(
        "the recording for `diff --events`",
        _event_files,
        _events,
        examples=(
            _as_lines([EVENTS[0], {"policyEvent": {**POLICY, "resourceUrn": None}}]),
            b'{"sequence": 1, "resourcePreEvent": -1}',
        ),
    ),
    "rehearsal-toml": Target("`rehearsal.toml`", _toml_files, _rehearsal_toml),
    **launch_targets.TARGETS,
    **provider_targets.TARGETS,
    **http_targets.TARGETS,
}

"""The reference pages and the recipe schema are complete, current, and accepted by what reads them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer._click.exceptions import UsageError

from tools.reference import __main__ as command
from tools.reference import cli, environment, pages, spec
from tools.reference.recipe_schema import recipe_schema
from tools.reference.scan import variables
from trainfleet.infra.spec.load import load_stack
from trainfleet.training.recipe.load import dump, known_recipes, load_recipe
from trainfleet.training.recipe.validation import check

FOLDER = pages.ROOT / pages.FOLDER
PAGES = sorted([*pages.PAGES, "README.md"])
RECIPES = sorted(known_recipes())
MODELINE = "# yaml-language-server: $schema=./recipe.schema.json"


@pytest.fixture(scope="module")
def contents() -> dict[str, str]:
    return pages.contents()


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = recipe_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def messages(validator: Any, recipe: Any) -> list[str]:
    return [f"{each.json_path}: {each.message}" for each in validator.iter_errors(recipe)]


# The files and the command.


@pytest.mark.deep
def test_the_files_are_those_of_this_code(contents: dict[str, str]) -> None:
    stale = [name for name, text in contents.items() if pages._read(pages.ROOT / name) != text]
    assert stale == [], f"stale; run: {pages.COMMAND}"


def test_check_names_stale_files_and_the_command(
    contents: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pages, "contents", lambda: contents)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main([]) == 0
    assert command.main(["--check"]) == 0
    capsys.readouterr()
    (tmp_path / "docs/reference/spec.md").write_text("old")
    (tmp_path / "docs/reference/cli.md").unlink()

    assert command.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "stale: docs/reference/spec.md",
        "stale: docs/reference/cli.md",
        "run: python -m tools.reference",
    ]
    assert (tmp_path / "docs/reference/spec.md").read_text() == "old", "--check writes nothing"


def test_generating_imports_neither_torch_nor_ray_nor_a_cloud_sdk() -> None:
    heavy = ("torch", "ray", "pulumi", "pulumi_aws")
    loaded = f"print([name for name in {heavy} if name in sys.modules])"
    code = f"import sys; from tools.reference.pages import contents; contents(); {loaded}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=pages.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_resolves(contents: dict[str, str], name: str) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", contents[f"{pages.FOLDER}/{name}"], flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    dead = [link for link in links if "://" not in link and not resolves(contents, name, link)]
    assert dead == []


def resolves(contents: dict[str, str], name: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (FOLDER / path if path else FOLDER / name).resolve()
    if not anchor or target.suffix != ".md":
        return target.exists() or str(target.relative_to(pages.ROOT)) in contents
    generated = contents.get(str(target.relative_to(pages.ROOT)))
    text = generated if generated is not None else target.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_row_of_a_table_has_the_cells_of_its_heading(contents: dict[str, str], name: str) -> None:
    width = 0
    for line in contents[f"{pages.FOLDER}/{name}"].splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (cells and width) or cells == width, line
        width = cells


# The platform spec.


def test_every_key_of_the_spec_has_a_row(contents: dict[str, str]) -> None:
    text = contents[f"{pages.FOLDER}/spec.md"]
    keys = spec.keys()
    assert [key for key in keys if f"| `{key}` |" not in text] == []
    assert {"gpu_pools[].capacity", "storage.shared_filesystem.kind", "exceptions[].until"} <= set(keys)
    assert spec.undescribed() == []


def test_types_defaults_limits_and_choices_of_the_spec(contents: dict[str, str]) -> None:
    rows = {
        line.split(" | ")[0].strip("|` "): line.split(" | ")
        for line in contents[f"{pages.FOLDER}/spec.md"].splitlines()
    }
    assert rows["owner"][1:3] == ["string", "required"]
    assert rows["network.zones"][1:4] == ["integer", "`3`", "at least 1, at most 6"]
    assert rows["network.cidr"][1:3] == ["IPv4 range", "`10.40.0.0/16`"]
    assert rows["cloud"][3] == "`aws`, `gcp`, `azure`, `local`"
    assert rows["budget.alert_at"][1:4] == [
        "list of number",
        "`[0.5, 0.8, 1.0]`",
        "each entry: above 0, at most 10",
    ]
    assert rows["gpu_pools"][1] == "list of groups"


def test_the_example_of_the_spec_passes_its_check(contents: dict[str, str], tmp_path: Path) -> None:
    example = contents[f"{pages.FOLDER}/spec.md"].split("```yaml\n")[-1].removesuffix("```\n")
    file = tmp_path / "Pulumi.research.yaml"
    file.write_text(example, encoding="utf-8")
    platform = load_stack(str(file))
    groups = {section.path.split(".")[0].removesuffix("[]") for section in spec.sections()} - {""}
    assert groups - platform.model_fields_set == set(), "the example shows every section"


# The command line.


def test_every_command_and_option_is_on_the_page(contents: dict[str, str]) -> None:
    text = contents[f"{pages.FOLDER}/cli.md"]
    sections = dict(
        re.findall(r"^##+ (trainfleet .+?)\n(.*?)(?=^## |^### |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    )
    found = [each for each in cli.entries() if each.name != "trainfleet"]
    assert [each.name for each in found] == list(sections)
    missing = [
        (each.name, option)
        for each in found
        for parameter in each.command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
        and f"`{option}`" not in sections[each.name]
        and parameter.name not in cli.COMPLETION
    ]
    assert missing == []
    assert len(found) > 30


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("trainfleet spec check", "trainfleet spec check [OPTIONS] [STACK]..."),
        ("trainfleet report", "trainfleet report [OPTIONS] RUN..."),
        (
            "trainfleet sky",
            "Subcommands: [setup](#trainfleet-sky-setup), [check](#trainfleet-sky-check), [token](#trainfleet-sky-token).",
        ),
        ("trainfleet train", "trainfleet train lm-small --storage s3://my-bucket/runs"),
        ("trainfleet train", "Exit codes: [common](#exit-codes)."),
    ],
)
def test_usage_examples_and_exit_codes_of_a_command(
    contents: dict[str, str], section: str, line: str
) -> None:
    text = contents[f"{pages.FOLDER}/cli.md"].split(f" {section}\n", maxsplit=1)[1]
    assert line in re.split(r"^##", text, flags=re.MULTILINE)[0].splitlines()


def test_a_command_with_exit_codes_of_its_own_lists_them(contents: dict[str, str]) -> None:
    text = contents[f"{pages.FOLDER}/cli.md"].split("## trainfleet diff\n")[1].split("\n## ")[0]
    assert re.search(r"^Exit codes: 0 .*; 2 ", text, flags=re.MULTILINE)


def words(example: str) -> list[str]:
    """The words of the first command of a line that is one of Trainfleet's; empty if there is none."""
    found = re.search(r"trainfleet [^)]*", example)
    lexed = shlex.split(found.group(), comments=True) if found else []
    ends = [lexed.index(each) for each in ("|", ">", "&&") if each in lexed]
    return lexed[: min(ends, default=len(lexed))]


def test_every_example_parses() -> None:
    found = {each.name: each for each in cli.entries()}
    wrong, parsed = [], 0
    for entry in found.values():
        for example in map(words, cli.read_help(entry.command.help or "").examples):
            if example:
                length = 3 if " ".join(example[:3]) in found and len(example) > 2 else 2
                command = found[" ".join(example[:length])].command
                try:
                    command.make_context(example[length - 1], example[length:])
                    parsed += 1
                except UsageError as error:
                    wrong.append([*example, error.format_message()])
    assert wrong == []
    assert parsed > 80


def test_a_wrapped_example_is_one_command() -> None:
    found = cli.read_help(
        "[bold]Examples[/]\n\ntrainfleet a --to\ns3://b --json\ntrainfleet doctor\n\nexport A=b"
    )
    assert found.examples == ["trainfleet a --to s3://b --json", "trainfleet doctor", "export A=b"]


def test_a_help_text_in_parts() -> None:
    found = cli.read_help(
        "Do [bold]it[/].\n\nSay [dim]a: b[/].\n\n[bold]Examples[/]\n\n"
        "  trainfleet x \\[0]\n\nMore.\n\nExit codes: 0 yes."
    )
    assert found == cli.Help(["Do it.", "Say `a: b`.", "More."], ["trainfleet x [0]"], "Exit codes: 0 yes.")


# Environment variables.


def test_every_variable_that_the_code_reads_is_on_the_page_and_no_other() -> None:
    found = variables(pages.ROOT)
    assert environment.undocumented(found) == [], "describe it in tools/reference/*variables.py"
    assert environment.unread(found) == [], "nothing reads it: remove it from tools/reference/*variables.py"
    assert {
        "TRAINFLEET_CACHE",
        "TRAINFLEET_RAY_SETTINGS",
        "TRAINFLEET_PYTHON",
        "AWS_ENDPOINT_URL",
        "RAY_ADDRESS",
    } <= found.keys()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("infra/a.py", "import os\nos.environ.get('TRAINFLEET_NEW')"),
        ("infra/a.py", "import os\nos.getenv('TRAINFLEET_NEW')"),
        ("infra/a.py", "def f(env):\n    return env['TRAINFLEET_NEW']"),
        ("infra/a.py", "import os\nfound = 'TRAINFLEET_NEW' in os.environ"),
        ("infra/a.py", "NAMES = ('TRAINFLEET_NEW',)"),
        ("infra/a.py", "SCRIPT = 'exec ${TRAINFLEET_NEW:-python3}'"),
        ("infra/run.sh", 'echo "${TRAINFLEET_NEW:-}"'),
        (".ci/run", 'echo "$TRAINFLEET_NEW"'),
        ("tests/a.py", "import os\nNEW = 'TRAINFLEET_NEW'\nos.environ.get(NEW)"),
    ],
)
def test_a_variable_that_is_read_and_not_described_is_found(tmp_path: Path, file: str, source: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(source)
    assert environment.undocumented(variables(tmp_path)) == ["TRAINFLEET_NEW"]


def test_other_programs_variables_are_found_too(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "a.py").write_text(
        "import os\nKEY = 'GOOGLE_NEW'\nos.environ.get(KEY)\nos.environ['SET_HERE'] = '1'"
    )
    assert environment.undocumented(variables(tmp_path)) == ["GOOGLE_NEW"]


def test_keys_of_a_recipe_and_texts_of_tests_are_not_variables_to_describe(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text(
        "f({'TRAINFLEET_NEW': '1'})\nimport os\nos.environ.get('TRAINFLEET_LOG__EVERY')"
    )
    assert variables(tmp_path) == {}


# Machines and prices.


def test_every_machine_and_price_is_on_the_page(contents: dict[str, str]) -> None:
    from trainfleet.infra.catalog.cost import prices
    from trainfleet.infra.catalog.machines import catalogue

    text = contents[f"{pages.FOLDER}/machines.md"]
    assert [each.instance_type for each in catalogue() if f"| `{each.instance_type}` |" not in text] == []
    assert [
        row["what"]
        for cloud in prices().values()
        for row in cloud.values()
        if f"| {row['what']} |" not in text
    ] == []
    row = next(line for line in text.splitlines() if "`p5.48xlarge`" in line).strip("| ").split(" | ")
    machine = next(each for each in catalogue() if each.instance_type == "p5.48xlarge")
    assert row[8] == f"{machine.usd_per_hour_on_demand:,.3f}"
    assert row[11:] == [str(machine.price_date), "[1]"]


# The JSON Schema of recipes.


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_passes_the_schema_as_written_and_with_every_default(validator: Any, name: str) -> None:
    text = known_recipes()[name].read_text(encoding="utf-8")
    assert messages(validator, yaml.safe_load(text)) == []
    assert messages(validator, yaml.safe_load(dump(load_recipe(name)))) == []
    assert text.splitlines()[0] == MODELINE


def test_both_copies_of_the_schema_are_the_same(contents: dict[str, str]) -> None:
    first, second = (contents[name] for name in pages.SCHEMAS)
    assert json.loads(first) == recipe_schema()
    assert first == second
    assert (known_recipes()["lm-tiny"].parent / "recipe.schema.json").is_file(), "what the modeline names"


WRONG = [
    ("lm-tiny", "optimizr", {}),
    ("lm-tiny", "optimizer.rl", 0.1),
    ("lm-tiny", "workload.modell", {}),
    ("lm-tiny", "workload.model.layrs", 2),
    ("lm-tiny", "workload.model.lora.rnk", 4),
    ("lm-tiny", "controllers.rate.sigma", 2.0),
    ("lm-small", "publish.gates.test/loss.maximum", 2.0),
    ("lm-small", "tune.space.optimizer.lr.uniforme", [0.1, 0.2]),
    ("lm-tiny", "steps", "many"),
    ("lm-tiny", "steps", 0),
    ("lm-tiny", "strategy", "zero"),
    ("lm-tiny", "optimizer.betas", [0.9]),
    ("lm-tiny", "optimizer.betas", [0.9, "x"]),
    ("lm-tiny", "batch", 32),
    ("lm-tiny", "log.prometheus", 80),
    ("lm-tiny", "sharding.blocks", "Block"),
    ("lm-tiny", "workload.data.stream", "maybe"),
    ("lm-tiny", "name", "Upper"),
    ("lm-tiny", "workload.name", None),
    ("vision-small", "workload.model.layers", "four"),
    ("vision-small", "workload.data.tokens", "bpe"),
    ("speech-small", "workload.model.kind", "vit"),
]


@pytest.mark.parametrize(("name", "key", "value"), WRONG)
def test_misspelt_keys_and_wrong_values_are_rejected_by_schema_and_recipe_alike(
    validator: Any, name: str, key: str, value: object
) -> None:
    recipe = yaml.safe_load(dump(load_recipe(name)))
    *groups, last = [
        part.replace("/lr", ".lr") for part in key.replace("optimizer.lr.", "optimizer/lr.").split(".")
    ]
    holder = recipe
    for group in groups:
        if not isinstance(holder.get(group), dict):
            holder[group] = {}
        holder = holder[group]
    holder[last] = value
    assert messages(validator, recipe) != []
    assert check(recipe)[1] != []


@pytest.mark.parametrize("missing", ["name", "workload"])
def test_what_a_recipe_needs_the_schema_needs(validator: Any, missing: str) -> None:
    recipe = yaml.safe_load(known_recipes()["lm-tiny"].read_text(encoding="utf-8"))
    del recipe[missing]
    assert messages(validator, recipe) == [f"$: '{missing}' is a required property"]


def test_a_workload_of_the_users_own_has_keys_of_its_own(validator: Any) -> None:
    recipe = yaml.safe_load(known_recipes()["lm-tiny"].read_text(encoding="utf-8"))
    recipe["workload"] = {"name": "mine:Model", "anything": {"at": "all"}}
    assert messages(validator, recipe) == []

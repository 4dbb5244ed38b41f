"""What Azure's management packages for Python say of a resource: its properties, and which are create-only.

A package is generated from the TypeSpec of one or more API versions. From the same TypeSpec comes the OpenAPI
document that azure-native is generated from. A property that may be created and read but not updated is
`x-ms-mutability: [create, read]` there and `rest_field(visibility=["read", "create"])` here. Packages that
are still generated from OpenAPI do not have it, and are passed over.

The source is parsed, not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_UPDATE, _CREATE = "update", "create"
_VERB = re.compile(r"^_?(begin_)?(create_or_update|create_or_replace|create|update|set|put|add)(_initial)?")
_NAMESPACE = re.compile(r"/providers/(Microsoft\.[\w.]+)/([^?]+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """One property of a model."""

    visibility: tuple[str, ...]
    model: str = ""
    """The model that it holds, if it holds one."""

    @property
    def read_only(self) -> bool:
        """Return whether it is an output only."""
        return not {_CREATE, _UPDATE} & set(self.visibility)

    @property
    def create_only(self) -> bool:
        """Return whether azure-native replaces if it changes (propChangeForcesRecreate in properties.go)."""
        return _CREATE in self.visibility and _UPDATE not in self.visibility


@dataclass(frozen=True)
class Resource:
    """What one PUT operation sends."""

    namespace: str
    """Of the address, without `Microsoft.` and in small letters."""
    names: frozenset[str]
    """Names under which azure-native may have it, in small letters and singular."""
    parameters: frozenset[str]
    """Parts of the address, in small letters, without the subscription."""
    api_version: str
    fields: Mapping[str, Field]
    properties: Mapping[str, Field]
    """Of the property `properties`, which azure-native merges into the resource."""
    source: str
    """The package and its version."""


def read(folder: Path) -> list[Resource]:
    """Return the resources of every management package that is installed in a folder."""
    found: list[Resource] = []
    for models in sorted(folder.rglob("models/_models.py")):
        text = models.read_text()
        if "rest_field(" in text and "aio" not in models.parts:
            found += _package(models.parents[1], _models(ast.parse(text)), _source(folder, models.parents[1]))
    return found


def _source(folder: Path, package: Path) -> str:
    """Return the distribution and version of a package."""
    name = "-".join(package.relative_to(folder).parts)
    version = re.search(r'VERSION = "([^"]+)"', (package / "_version.py").read_text())
    return f"{name} {version[1] if version else ''}".strip()


def _models(tree: ast.Module) -> dict[str, dict[str, Field]]:
    """Return the fields of each model by their names in the API, with those that it inherits."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    made: dict[str, dict[str, Field]] = {}

    def fields(name: str) -> dict[str, Field]:
        if name not in made:
            made[name] = {}
            node = classes[name]
            for base in node.bases:
                made[name] |= fields(base.id) if isinstance(base, ast.Name) and base.id in classes else {}
            made[name] |= dict(_fields(node))
        return made[name]

    return {name: fields(name) for name in classes}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Field]]:
    for each in node.body:
        call = each.value if isinstance(each, ast.AnnAssign) else None
        if not isinstance(each, ast.AnnAssign) or not isinstance(call, ast.Call):
            continue
        function = ast.unparse(call.func)
        if function not in ("rest_field", "rest_discriminator"):
            continue
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg in _READ}
        model = re.fullmatch(r"(?:Optional\[)?'_models\.(\w+)'\]?", ast.unparse(each.annotation))
        name = given.get("name", ast.unparse(each.target))
        yield str(name), Field(tuple(given.get("visibility", ())), model[1] if model else "")


_READ = ("name", "visibility")


def _package(package: Path, models: Mapping[str, Mapping[str, Field]], source: str) -> Iterator[Resource]:
    for file in sorted((package / "operations").glob("_*operations.py")):
        tree = ast.parse(file.read_text())
        requests = {
            node.name: built
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and (built := _request(node))
        }
        for group in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for operation, body, request in _puts(group, requests):
                if body in models:
                    yield _resource(operation, body, request, models, source)


def _request(node: ast.FunctionDef) -> tuple[str, str] | None:
    """Return the address and API version of a function that builds a PUT request."""
    texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    address = next((text for text in texts if isinstance(text, str) and text.startswith("/")), "")
    versions = [text for text in texts if isinstance(text, str) and re.match(r"\d{4}-\d\d-\d\d", text)]
    return (address, versions[0]) if "PUT" in texts and address and versions else None


def _puts(
    group: ast.ClassDef, requests: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Return operation (`WebApps.create_or_update`), model and request of each method that sends one."""
    for method in (node for node in group.body if isinstance(node, ast.FunctionDef)):
        called = {each.id for each in ast.walk(method) if isinstance(each, ast.Name)} & set(requests)
        annotations = " ".join(
            ast.unparse(each.annotation)
            for each in (*method.args.args, *method.args.kwonlyargs)
            if each.annotation
        )
        body = re.search(r"_models\.(\w+)", annotations)
        if called and body:
            operation = f"{group.name.removesuffix('Operations')}.{method.name}"
            yield operation, body[1], requests[called.pop()]


def _resource(
    operation: str,
    body: str,
    request: tuple[str, str],
    models: Mapping[str, Mapping[str, Field]],
    source: str,
) -> Resource:
    address, version = request
    fields = models[body]
    inner = fields.get("properties")
    place = _NAMESPACE.search(address)
    last = re.sub(r"/\{\w+\}$|/default$", "", address).rsplit("/", 1)[-1]
    group, _, method = operation.partition(".")
    rest = _VERB.sub("", method).replace("_", "")
    names = {group, body, last, singular(group) + rest}
    return Resource(
        place[1].lower().removeprefix("microsoft.") if place else "",
        frozenset(singular(name) for name in names),
        frozenset(
            name.lower() for name in re.findall(r"\{(\w+)\}", address) if name.lower() != "subscriptionid"
        ),
        version,
        fields,
        models.get(inner.model, {}) if inner else {},
        source,
    )


def singular(name: str) -> str:
    """Return a name in small letters and singular, as far as the ends of English words tell."""
    low = name.lower()
    for end, one in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ss", "ss"), ("s", "")):
        if low.endswith(end):
            return low.removesuffix(end) + one
    return low

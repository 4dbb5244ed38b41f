"""What Azure's management packages for Python (azure-mgmt-*) say of properties, read without importing.

The newer packages are generated from the definitions of Azure's REST APIs. Their models say when a property
can be given: `rest_field(name="location", visibility=["read", "create"])` is what the definitions call
`x-ms-mutability`. A package of the older generator has no visibility, and nothing is read of it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from trainfleet.errors import InputError, Problem

PINS = Path(__file__).with_name("azure_models.txt")
Visibility = frozenset[str]
_MODEL = re.compile(r"_models\.(\w+)")
_ONE_MODEL = re.compile(r"""^(?:Optional\[)?["']?_models\.(\w+)["']?\]?$""")
_VERSION = re.compile(r'"api[-_]version", "(\d{4}-\d{2}-\d{2}[\w-]*)"')


@dataclass(frozen=True)
class Field:
    """A property of a model: when it can be given or is returned, and its type, if that is one model."""

    visibility: Visibility | None
    """Of read, create, update, delete and query; None if the package does not say it."""
    model: str = ""


@dataclass(frozen=True)
class Operation:
    """An operation that creates a resource: its address, its name in the API, and the model of its body."""

    url: str
    name: str
    """Operation group and what a `get` of the same address returns: `WebAppsAuthSettings`."""
    body: str

    @property
    def namespace(self) -> str:
        """Return the resource provider, such as Microsoft.ContainerService."""
        found = re.findall(r"/providers/([\w.]+)", self.url)
        return found[-1] if found else "Microsoft.Resources"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the parameters of the address, but for the subscription."""
        return tuple(each for each in re.findall(r"{(\w+)}", self.url) if each.lower() != "subscriptionid")


@dataclass
class Models:
    """The models and operations of one API in a package."""

    package: str
    version: str
    date: str
    """Newest date of a file in the package, as YYYY-MM-DD."""
    api: str = ""
    """Newest version of the REST API that an operation calls."""
    fields: dict[str, dict[str, Field]] = field(default_factory=dict)
    """By model, without inherited ones."""
    bases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def all_fields(self, model: str) -> dict[str, Field]:
        """Return the properties of a model by wire name, with inherited ones."""
        found: dict[str, Field] = {}
        for base in self.bases.get(model, ()):
            found |= self.all_fields(base)
        return found | self.fields.get(model, {})

    def kinds(self, model: str) -> Iterator[str]:
        """Yield the models that inherit from a model: the kinds of a resource with a discriminator."""
        for name, bases in self.bases.items():
            if model in bases:
                yield name
                yield from self.kinds(name)

    @property
    def source(self) -> str:
        """Return package, version, date, and version of the API."""
        return f"{self.package} {self.version}, {self.date}, API {self.api}"


def read_pinned() -> list[Models]:
    """Download the packages of azure_models.txt, and return their APIs that say when a property can be given.

    Raises:
        InputError: a package cannot be downloaded.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--dest", folder, "--requirement", str(PINS)], check=False)
        if done.returncode != 0:
            raise InputError("the packages of Azure cannot be downloaded", [Problem(PINS.name, "see above")])
        return [each for file in sorted(Path(folder).glob("*.whl")) for each in read_wheel(file)]


def read_wheel(file: Path) -> list[Models]:
    """Return the APIs of one wheel; nothing of a package that has no visibility."""
    with zipfile.ZipFile(file) as wheel:
        names = wheel.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        head = HeaderParser().parsestr(wheel.read(metadata).decode())
        date = "{:04}-{:02}-{:02}".format(*max(each.date_time[:3] for each in wheel.infolist()))
        found = []
        for name in names:
            if not name.endswith("/models/_models.py"):
                continue
            text = wheel.read(name).decode()
            if "visibility=" not in text:
                continue
            models = Models(head["Name"], head["Version"], date)
            _read_models(models, ast.parse(text))
            home = PurePosixPath(name).parent.parent / "operations"
            for each in names:
                if PurePosixPath(each).parent == home and each.endswith("_operations.py"):
                    source = wheel.read(each).decode()
                    models.api = max([models.api, *_VERSION.findall(source)])
                    models.operations += _operations(ast.parse(source), models.fields.keys())
            found.append(models)
        return found


def _read_models(models: Models, tree: ast.Module) -> None:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        models.bases[node.name] = tuple(ast.unparse(base).split(".")[-1] for base in node.bases)
        own = models.fields.setdefault(node.name, {})
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call):
                call = line.value
                given = {each.arg: each.value for each in call.keywords}
                if ast.unparse(call.func) in ("rest_field", "rest_discriminator"):
                    name = _text(given.get("name")) or ast.unparse(line.target)
                    model = _ONE_MODEL.match(ast.unparse(line.annotation).replace('"', "'"))
                    own[name] = Field(_visibility(given.get("visibility")), model.group(1) if model else "")


def _visibility(node: ast.expr | None) -> Visibility | None:
    return frozenset(map(_text, node.elts)) if isinstance(node, ast.List) else None


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _operations(tree: ast.Module, models: Collection[str]) -> Iterator[Operation]:
    """Yield the operations of a file that put a body to an address."""
    requests = {
        node.name: (method, url)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and (url := _url(node)) and (method := _method(node))
    }
    puts: list[tuple[str, str, str]] = []
    gets: dict[tuple[str, str], str] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        group = node.name.strip("_").removesuffix("Operations").removesuffix("Mixin")
        for function in node.body:
            if not isinstance(function, ast.FunctionDef):
                continue
            method, url = next((requests[name] for name in _called(function) if name in requests), ("", ""))
            if method == "PUT" and (body := _body(function, models)):
                puts.append((group, url, body))
            if method == "GET":
                verb = re.sub(r"^(_*begin_|_*get|_*list)_?|_initial$", "", function.name)
                gets.setdefault((group, url), "".join(part.title() for part in verb.split("_")))
    for group, url, body in puts:
        yield Operation(url, group + gets.get((group, url), ""), body)


def _called(function: ast.FunctionDef) -> Iterator[str]:
    return (
        each.func.id
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    )


def _url(function: ast.FunctionDef) -> str:
    """Return the address of a request: the first text that is assigned to `_url`."""
    for node in function.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_url":
            return _text(node.value)
    return ""


def _method(function: ast.FunctionDef) -> str:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "HttpRequest":
            return next((_text(each.value) for each in node.keywords if each.arg == "method"), "")
    return ""


def _body(function: ast.FunctionDef, models: Collection[str]) -> str:
    """Return the first model that an argument of a method may be; part of an address may be an enum."""
    texts = (ast.unparse(each.annotation) for each in function.args.args if each.annotation)
    return next((name for text in texts for name in _MODEL.findall(text) if name in models), "")


def by_namespace(read: list[Models]) -> Mapping[str, list[tuple[Models, Operation]]]:
    """Return the operations by resource provider, in small letters and without `Microsoft.`."""
    found: dict[str, list[tuple[Models, Operation]]] = {}
    for models in read:
        for operation in models.operations:
            name = operation.namespace.lower().removeprefix("microsoft.").replace(".", "")
            found.setdefault(name, []).append((models, operation))
    return found

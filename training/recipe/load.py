"""Load a recipe from YAML, TRAINFLEET_ variables and `key=value` overrides. Later sources win.

All mistakes are reported at once, each with the file, variable or override that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.validation import KeyPath, check
from trainfleet.yaml_limits import check_limits, only_yaml_errors

ENVIRONMENT = "TRAINFLEET_"
SECRET_SECTION = "notifications"
"""The section whose values are not shown: somebody may write an address with its token there."""


def without_recipe_keys(env: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that set recipe keys, for processes that get the resolved recipe."""

    def sets_key(name: str) -> bool:
        own = name.startswith(ENVIRONMENT)
        return own and ("__" in name or name.removeprefix(ENVIRONMENT).lower() in Recipe.model_fields)

    return {name: value for name, value in env.items() if not sets_key(name)}


def known_recipes() -> dict[str, Path]:
    """The included recipes by name."""
    from trainfleet import recipes

    return {path.stem: path for path in sorted(Path(recipes.__path__[0]).glob("*.yaml"))}


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Recipe:
    """Load a recipe.

    Args:
        path: a YAML file, or the name of an included recipe.
        overrides: `optimizer.lr=3e-4`; values are YAML.
        env: variables such as TRAINFLEET_OPTIMIZER__LR=3e-4. They override the file; `overrides` override
        them.

    Raises:
        InputError: the file does not exist, is not YAML, or has mistakes (all of them).
    """
    document = _read(_find(path))
    problems: list[Problem] = []
    origins: dict[KeyPath, str] = {}
    for keys, text, origin in [*_from_environment(env or {}), *_from_overrides(overrides, problems)]:
        try:
            value = yaml_limits.load(text)
        except yaml.YAMLError:
            fix = f"""quote text: '{".".join(keys)}="{text}"'"""
            if keys[0] == SECRET_SECTION:
                problems.append(Problem(_shown(keys, origin), "is not valid YAML", "a variable's name"))
            else:
                problems.append(Problem(origin, f"`{text}` is not valid YAML", fix))
            continue
        _set(document, keys, value)
        origins[keys] = _shown(keys, origin)
    recipe, found = check(document)
    for keys, problem in found:
        origin = _origin(keys, origins) or str(path)
        where = f"{origin}: {problem.where}" if problem.where else origin
        what = "must be a group of keys" if keys == (SECRET_SECTION,) else problem.what
        problems.append(Problem(where, what, problem.fix))
    if recipe is None or problems:
        count = f"{len(problems)} mistake{'s' if len(problems) != 1 else ''}"
        raise InputError(f"{path}: {count} in the recipe", problems)
    return recipe


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, including all defaults."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def _origin(keys: KeyPath, origins: Mapping[KeyPath, str]) -> str | None:
    """The override or variable that set `keys`, a section around it, or a key inside it."""
    around = (origins[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in origins)
    inside = (origin for path, origin in origins.items() if path[: len(keys)] == keys)
    return next(around, None) or next(inside, None)


def _shown(keys: KeyPath, origin: str) -> str:
    """An override for messages, without the address that was given in place of a variable's name."""
    return f"{'.'.join(keys)}=…" if keys[0] == SECRET_SECTION and "=" in origin else origin


def _find(path: str | Path) -> Path:
    if Path(path).is_file():
        return Path(path)
    known = known_recipes()
    if str(path) in known:
        return known[str(path)]
    if Path(path).is_dir():
        raise InputError("not a recipe", [Problem(str(path), "is a folder", "name a YAML file")])
    what = "is neither a file nor the name of an included recipe"
    raise InputError("recipe not found", [Problem(str(path), what, did_you_mean(Path(path).stem, known))])


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that rejects duplicate keys; PyYAML silently uses the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key `{key.value}`", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        with only_yaml_errors():
            check_limits(text)
            document = yaml.load(text, _UniqueKeyLoader)
    except OSError as error:
        problem = Problem(str(file), error.strerror or "cannot be read")
        raise InputError("cannot read the recipe", [problem]) from error
    except UnicodeDecodeError as error:
        raise InputError("cannot read the recipe", [Problem(str(file), "is not UTF-8 text")]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise InputError(
            "the recipe is not valid YAML", [Problem(where, error.problem or "cannot be read")]
        ) from error
    except yaml.YAMLError as error:
        what = f"cannot be read: {' '.join(str(error).split())}"
        raise InputError("the recipe is not valid YAML", [Problem(str(file), what)]) from error
    if not isinstance(document, dict):
        problem = Problem(str(file), "must contain `name:`, `workload:` and so on")
        raise InputError("the recipe is empty or not a mapping", [problem])
    return document


def _from_environment(env: Mapping[str, str]) -> list[tuple[KeyPath, str, str]]:
    """Variables that name a recipe key. Other TRAINFLEET_ variables without `__` configure the program."""
    found = []
    for name in sorted(env):
        keys = tuple(name.removeprefix(ENVIRONMENT).lower().split("__"))
        if name.startswith(ENVIRONMENT) and (len(keys) > 1 or keys[0] in Recipe.model_fields):
            found.append((keys, env[name], name))
    return found


def _from_overrides(overrides: Sequence[str], problems: list[Problem]) -> list[tuple[KeyPath, str, str]]:
    found = []
    for override in overrides:
        key, equals, text = override.partition("=")
        keys = tuple(part.strip() for part in key.split("."))
        if not equals or not all(keys):
            fix = "write key=value, such as optimizer.lr=3e-4"
            problems.append(Problem(override, "is not a valid setting", fix))
        else:
            found.append((keys, text, override))
    return found


def _set(document: dict[str, Any], keys: KeyPath, value: Any) -> None:
    for key in keys[:-1]:
        inner = document.get(key)
        document[key] = document = inner if isinstance(inner, dict) else {}
    document[keys[-1]] = value

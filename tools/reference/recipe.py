"""docs/reference/recipe.md: every key of a recipe, by the recipe's own generator."""

from __future__ import annotations

from tools.reference.pages import adopt

SCHEMA = """
To complete and check a recipe in an editor, name its JSON Schema in the first line. The path is relative to
the recipe:

```yaml
# yaml-language-server: $schema=./recipe.schema.json
```
"""


def markdown() -> str:
    """The page."""
    from trainfleet.training.recipe.docs import markdown as recipe

    introduction, heading, sections = adopt(recipe()).partition("\n## ")
    return f"{introduction}{SCHEMA}{heading}{sections}"

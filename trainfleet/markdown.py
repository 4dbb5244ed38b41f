"""Text of others in Markdown and on terminals: names and values from a cloud or a bill stay text.

GitHub and GitLab render links, images, HTML and mentions, so that who may tag a resource could write them
into an issue.
"""

from __future__ import annotations

import re

_BREAK = "\u200b"
"""A zero-width space: it keeps a mention or an address from being one."""


def code_span(text: str) -> str:
    """Return a text as code, on one line."""
    text = " ".join(text.split())
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def plain_text(text: str) -> str:
    """Return a text in which nothing is markup, on one line."""
    text = " ".join(text.split())
    text = re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", text.replace("&", "&amp;"))
    return re.sub(r"(?<!\w)@(?=\w)", f"@{_BREAK}", text).replace("://", f":{_BREAK}//")


def with_code(text: str) -> str:
    """Return a text of our own: what is between backticks is code, and the rest is plain."""
    parts = text.split("`")
    return "".join(code_span(part) if index % 2 else _kept(part) for index, part in enumerate(parts))


def _kept(part: str) -> str:
    """Return a part with the spaces around it."""
    before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
    return f"{before}{plain_text(part)}{after}" if part.strip() else part


def without_ticks(text: str) -> str:
    """Return a text of others that can be part of one for `with_code`."""
    return text.replace("`", "'")


def printable(text: str) -> str:
    """Return a text for a terminal: without the control characters by which it would be steered."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)

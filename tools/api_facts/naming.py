"""Reads the rule for an id or a name from prose: a literal pattern, or its characters and length."""

from __future__ import annotations

import re
from typing import Any

from tools.api_facts.keywords import LENGTHS, limits

_WRITTEN = re.compile(
    r"[`(/\s]\^?((?:\(\?:|\()?\[(?:a-z|A-Z|0-9|\\w)[^`\s]*?[\]})*+?])\$?(?:[`)/](?=[\s.,;:]|$)|(?=\s|[.,;](?:\s|$)|$))"
)
_COMMAND = re.compile(
    r"\b(?:must|may|can|should|value is|valid|allowed|only|consists?"
    r" of|restricts?|containing|contains?|restricted|comprised|string of|be made up)\b",
    re.I,
)
_LETTERS = re.compile(r"\b(?:letters?|alpha-?numeric|characters? (?:in|are|from)? ?a-z|a-z|alphabet)", re.I)
_LOWER = re.compile(
    r"\b(?:lower-? ?cased?|small)"
    r" ?(?:alphanumeric|letters?|ASCII|characters?|roman|,|a-z|\(|\[|or|and)|lower-cased",
    re.I,
)
_UPPER = re.compile(r"[Uu]pper-? ?case|A-Z|case-sensitive")
_LENGTHS = (
    re.compile(
        r"\b(?:between )?(\d{1,2}) ?(?:-|–|to|and) ?(\d{1,3}) (?:ASCII |lower-?case |alphanumeric"
        r" )*(?:characters|letters|chars)",
        re.I,
    ),
    re.compile(
        r"\blength (?:of |between |must be |should be |is )*(\d{1,2}) ?(?:-|to|and) ?(\d{1,3})\b", re.I
    ),
    re.compile(
        r"()(?:maximum (?:length|size) (?:of|is)|max(?:\.|imum)? (?:length )?(?:of|is|:)?|up to|at most|no"
        r" (?:more|longer) than|exceed|limited to|"
        r"fewer than or equal to) (\d{1,3})(?: characters|\b(?! ?(?:bytes|KB)))",
        re.I,
    ),
    re.compile(r"()\b(\d{1,3}) characters (?:or (?:less|fewer)|max)", re.I),
)
_BEGINS = re.compile(
    r"(?:start|begin|beginning|starting|begins|starts) with (?:a |an )?(?:lower-?case |upper or lowercase"
    r" |ASCII )?(?:letter|alphabetic)|"
    r"first character must be (?:a |an )?(?:lower-?case )?letter",
    re.I,
)
_ENDS = re.compile(
    r"end(?:ing)? with (?:a |an )?(?:lower-?case )?(?:letter|number|alphanumeric)|trailing"
    r" (?:hyphen|dash)|cannot (?:end with|be) a (?:dash|hyphen)|"
    r"cannot be a dash|not end with a hyphen|last character (?:must be|cannot)",
    re.I,
)
_ELSE = re.compile(
    r"e-?mail|domain name|URL|URI|path|unicode|UTF-8|spaces?\b|any"
    r" character|encoded|wildcard|glob|printable|[Cc]olon|%|~",
    re.I,
)


def name_rule(text: str) -> dict[str, Any]:
    """Return the rule as a fact; empty if the text contains none."""
    words = " ".join(text.split())
    return _written(words) or _end_rules(words)


def _written(words: str) -> dict[str, Any]:
    found = [match[1] for match in _WRITTEN.finditer(words)]
    if (
        len(set(found)) != 1
        or re.search(r"e\.g\.|for example", words[: words.find(found[0])][-30:], re.I)
        or "\\p{" in found[0]
    ):
        return {}
    expression = found[0].rstrip("$")
    if not re.search(r"[*+}]", expression):
        return {}
    try:
        re.compile(expression)
    except re.error:
        return {}
    if re.fullmatch(expression, "a b") or not (
        re.fullmatch(expression, "abcdefgh") or re.fullmatch(expression, "abc-defg1")
    ):
        return {}
    return {"pattern": expression, **_length(words)}


def _length(words: str) -> dict[str, Any]:
    if "followed by" in words:
        return {}
    pairs = [(int(low or 0), int(high)) for expression in _LENGTHS for low, high in expression.findall(words)]
    if not pairs:
        return {}
    low, high = min(low for low, _ in pairs), max(high for _, high in pairs)
    return limits(LENGTHS, low or None, high) if high >= 4 else {}


def _end_rules(words: str) -> dict[str, Any]:
    if re.search(r"[\[/]\^|\{\d", words):
        return {}  # the text contains a damaged pattern
    slashed = re.search(
        r"characters are `?/(a-z(?:\[?0-9\]?)?[-_]+)/|characters (?:are )?`?\[(a-z0-9[^\]]*)\]", words
    )
    inner = (slashed[1] or slashed[2]) if slashed else ""
    if not slashed and not (
        _COMMAND.search(words)
        and _LETTERS.search(words)
        and re.search(r"hyphen|dash|underscore", words, re.I)
    ):
        return {}
    if _ELSE.search(words):
        return {}
    lower = bool(_LOWER.search(words) or slashed) and not _UPPER.search(words)
    dash = bool(re.search(r"hyphen|dash|`-`|\(-\)", words, re.I) or "-" in re.sub(r"\w-\w", "", inner))
    low_line = bool(re.search(r"underscore|`_`", words, re.I) or "_" in inner)
    dot = bool(re.search(r"period|\bdots?\b|`\.`", words, re.I))
    negated = bool(
        re.search(
            r"(?:no|not|without|except|cannot|disallowed)[^.;]{0,30}(?:underscore|period|dot)", words, re.I
        )
    )
    if negated:
        return {}
    inside = (
        f"a-z0-9{'' if lower else 'A-Z'}{'_' if low_line else ''}{'.' if dot else ''}{'-' if dash else ''}"
    )
    first = (
        f"[a-z{'' if lower else 'A-Z'}]"
        if _BEGINS.search(words) and not re.search(r"letter or (?:a )?(?:number|digit)", words)
        else f"[{inside}]"
    )
    last = f"(?:[{inside}]*[a-z0-9{'' if lower else 'A-Z'}])?" if _ENDS.search(words) else f"[{inside}]*"
    return {"pattern": f"{first}{last}", **_length(words)}

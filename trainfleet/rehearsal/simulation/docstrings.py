"""Reads the limits on a property's value from its documentation: sets, numeric ranges, text lengths.

Many cloud limits are documented only in prose ("Valid values are `A` and `B`", "between 7 and 30 days").
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainfleet.rehearsal.simulation.json_schema import Schema

Number = float


@dataclass(frozen=True)
class Documented:
    """The limits that a property's documentation gives; each may be empty.

    `values` are the listed values. If `closed`, any other value is invalid; otherwise only a near miss is.
    `mentioned` is every quoted value in the text. `numbers` and `length` are inclusive limits.
    """

    values: tuple[str, ...] = ()
    closed: bool = False
    mentioned: frozenset[str] = frozenset()
    numbers: tuple[Number | None, Number | None] = (None, None)
    length: tuple[int | None, int | None] = (None, None)
    pattern: str = ""

    @functools.cached_property
    def schema(self) -> Schema:
        """The limits, without the values, as a JSON Schema."""
        (low, high), (least, most) = self.numbers, self.length
        limits: Schema = {"minimum": low, "maximum": high, "minLength": least, "maxLength": most}
        limits |= {"pattern": f"^(?:{self.pattern})$" if self.pattern else None}
        return {key: limit for key, limit in limits.items() if limit is not None}


NOTHING = Documented()


def read(document: str, *, number: bool = False, names: Iterable[str] = ()) -> Documented:
    """Return the limits in a property's documentation.

    `names` are the sibling properties, which do not count as values.
    """
    if not document:
        return NOTHING
    values, closed = _values(document, {name.lower() for name in names}, number=number)
    text = " ".join(document.split())
    mentioned = frozenset(re.findall(r"[`\"']+([^`\"']+)[`\"']+", text))
    if number:
        return Documented(
            values,
            closed,
            mentioned | frozenset(re.findall(r"(?<![\w.])-?\d+(?![\w.])", text)),
            _numbers(text),
        )
    return Documented(values, closed, mentioned, length=_length(text), pattern=_pattern(text))


# Closed sets
# ------------------------------------------------------------------------------------------------------------

_QUOTED = (
    r"(?:`+\"?(?P<tick>[^`\"\n]{1,60})\"?`+|\\?\"(?P<double>[^\"\n]{1,60}?)\\?\""
    r"|'(?P<single>[^'\n]{1,60})'|“(?P<curly>[^”\n]{1,60})”)"
)
_ITEM = re.compile(rf"{_QUOTED}(?P<note>\s*\([^()]{{0,160}}\))?")
_BARE = re.compile(r"(?P<bare>[A-Za-z0-9][\w./+-]*[\w+]|[A-Za-z0-9])(?P<note>\s*\([^()]{0,80}\))?")
_BETWEEN = re.compile(r"\s*(?:,\s*(?:or|and|and/or)\s|,|;|/|\||\bor\b|\band\b|&)\s*(?:also\s|either\s)?")
_ENDS = re.compile(
    r"\s*(?:$|[.;\])]|\((?!\S+\))|-\s|>|\*\*|(?:,\s*)?(?:with|where|default|for|if|when|as|to|on|in|depending|only|based)\b|(?-i:[A-Z]))",
    re.I,
)
_OPEN = re.compile(
    r"such as|e\.g|for example|for instance|examples?|like|etc|and so on|among other|\.\.\.|not"
    r" limited|patterns?|wildcard|prefix|some|additional",
    re.I,
)
_EXAMPLES = re.compile(
    r"\b(?:e\.g|for example|for instance|examples?(?: values?)?(?: are| include| is)?|such as|like|including"
    r" but not limited to)\b[.,:]*\s*$",
    re.I,
)
_WORDS = (
    r"values?|options?|types?|modes?|choices?|settings?|actions?|strateg(?:y|ies)|levels?|classes|formats?"
    r"|states?|status(?:es)?|protocols?|algorithms?|operators?|policies|reasons?|kinds|tiers|strings?|names"
    r"|enums?|members|events|items"
)
_LISTS = re.compile(
    rf"""(?:
      (?P<strong>\b(?:valid|allowed|allowable|possible|supported|accepted|acceptable|permitted|permissible|legal|available|known|defined)\s
        (?:[\w-]+\s){{0,2}}?(?:{_WORDS})(?:\s(?:for|of|in)\s(?:the\s|this\s|a\s)?[`\w][^.:`"'\n]{{0,40}}`?)?
        \s*(?:(?:currently\s)?(?:are|is|(?P<include>includes?|including))\s*:?|:)
      | \b(?:values?|options)\s(?:supported|allowed)\sare
      | (?:^|\.\s)values?:
      | \bcan\s(?:only\s)?take\s(?:one\sof\s)?(?:the\sfollowing\svalues:?)
      | \b(?:accepts|takes)\s(?:only\s)?(?:the\s)?(?:following\s)?values?:?
      | \bmust\s(?:only\s)?be\s(?:set\sto\s)?(?:either|one\sof|any\sof)
      | \b(?:should|can|may)\s(?:only\s|currently\s)?be\s(?:set\sto\s)?(?:either|one\sof)
      | \bshould\sbe\sset\sto
      | (?:^|\.\s)supports(?=\s`[A-Z0-9_]+`,)
      | ,\seither(?=\s`[^`]+`\sor\s`[^`]+`\s*(?:\.|$))
      | (?:^|\.\s)(?:can|must|should|may)\s(?:only\s)?be
      | (?:^|\.\s|:\s|\)\s|-\s)(?:either|one\sof)
      | (?:^|(?<!i\.e)(?<!e\.g)[.:]\s)(?=`[^`\n]+`(?:,\s`[^`\n]+`)*,?\sor\s`[^`\n]+`\s*(?:\.|$))
      | ^whether\s[^.`]{5, 80}\sis(?=\s`[^`\n]+`\sor\s`[^`\n]+`)
      | ,\seither(?=\s[A-Z][A-Z0-9_]{(2,)}\sor\s[A-Z][A-Z0-9_]{(2,)}\s*(?:\.|$))
      )
    | (?P<weak>\b(?:can|may|should|must)\s(?:only\s)?be(?:\sset\sto)?|\beither|\bone\sof|\bset\sto)
    )(?:\s(?:one\sof|either|any\sof))?(?:\sthe)?(?:\s(?:following|these|below))?(?:\s(?:values?|options?|strings?|types?))?(?:\sbelow)?\s*[:=-]?\s*\[?""",
    re.I | re.X | re.M,
)
_BULLET = re.compile(rf"^\s*(?:[*+-]|\d+\.)\s+(?:\*\*)?{_QUOTED}(?:\*\*)?(?=\s|[:.,(–-]|$)", re.M)
_PLAIN_BULLET = re.compile(
    r"^\s*(?:[*+-])\s+(?:\*\*)?(?P<bare>[A-Z][A-Z0-9_]{2,50})(?:\*\*)?(?=\s*(?:[:.(–-]|$))", re.M
)
_ANY_BULLET = re.compile(r"^\s*(?:[*+-]|\d+\.)\s+\S", re.M)
_QUOTED_AGAIN = re.compile(r"\b(?:possible|allowed|supported|valid)\s+values\s+are\s*:\s*[`\"]$", re.I)
# "include" followed by exactly two values is a complete list.
_TWO = re.compile(r"`[^`]+`\s+(?:or|and)\s+`[^`]+`\s*(?:\.|$)")
_VALUE = re.compile(r"[A-Za-z0-9*_-][\w.:/+ -]*|\*|-1")


def _values(document: str, names: set[str], *, number: bool) -> tuple[tuple[str, ...], bool]:
    """Return the values of every list in the text, and whether one of the lists is closed."""
    found: dict[str, None] = {}
    closed = False
    for match in _LISTS.finditer(document):
        start = match.end()
        if _EXAMPLES.search(" ".join(document[max(0, match.start() - 60) : start].split())):
            continue  # an incomplete list of examples
        items, good = _bullets(document, start) or _listed(document, start, bare=bool(match.group("strong")))
        alone = (
            len(items) == 1
            and bool(match.group("strong"))
            and good
            and _QUOTED_AGAIN.search(document[match.start() : match.end() + 1]) is not None
        )
        if not _are_values(items, names, number=number, least=1 if alone else 2):
            continue
        found |= dict.fromkeys(items)
        before = re.sub(
            r"\bthe only\s*$",
            "",
            document[max(0, match.start() - 60) : match.start()].rsplit(".", 1)[-1],
            flags=re.I,
        )
        conditional = (
            re.search(r"\b(?:if|when|unless|only|conflicts?|required)\b|^\s*for (?:the|an?)\b", before, re.I)
            is not None
        )
        included = bool(match.group("include")) and not _TWO.match(document, match.end())
        closed |= bool(match.group("strong")) and good and not included and not conditional
    return tuple(found), closed


def _listed(document: str, start: int, *, bare: bool) -> tuple[list[str], bool]:
    """Return the items of a list inside a sentence, and whether the sentence ends with the list."""
    items: list[str] = []
    position = start
    quoted = _ITEM.match(document, position) is not None
    if not quoted and not bare:
        return [], False
    while match := (_ITEM if quoted else _BARE).match(document, position):
        groups = match.groupdict()
        items.append(
            next(
                str(groups[name]).strip()
                for name in ("tick", "double", "single", "curly", "bare")
                if groups.get(name)
            )
        )
        position = match.end()
        separator = _BETWEEN.match(document, position)
        if separator is None:
            break
        if not (_ITEM if quoted else _BARE).match(document, separator.end()):
            return items, False
        position = separator.end()
    rest = document[position : position + 60]
    sentence = re.split(r"\.\s|\n\n", rest, maxsplit=1)[0]
    good = _ENDS.match(rest) is not None and not _OPEN.search(sentence)
    if not quoted:  # unquoted words are values only if the list is the whole sentence
        good = (
            good
            and re.match(r"\s*(?:$|[.;)\]])", rest) is not None
            and not any(item.lower() in _PROSE for item in items)
        )
        return (items, good) if good else ([], False)
    return items, good


_PROSE = frozenset(
    [
        "a",
        "ipv4",
        "an",
        "the",
        "of",
        "to",
        "in",
        "is",
        "are",
        "be",
        "not",
        "one",
        "any",
        "all",
        "none-of",
        "value",
        "values",
        "string",
        "number",
        "integer",
        "valid",
        "this",
        "that",
        "it",
        "see",
    ]
)


def _bullets(document: str, start: int) -> tuple[list[str], bool] | None:
    """Return the quoted heads of the bulleted list at `start`, or None if there is no such list."""
    opening = re.compile(r"\s*(?:\n\s*)?(?=^\s*(?:[*+-]|\d+\.)\s)", re.M).match(document, start)
    if opening is None or "\n" not in document[max(0, start - 2) : opening.end() + 1]:
        return None
    block = re.split(r"\n\s*\n(?!\s*(?:[*+-]|\d+\.)\s)", document[opening.start() :], maxsplit=1)[0]
    indents = [len(match.group(0)) - len(match.group(0).lstrip()) for match in _ANY_BULLET.finditer(block)]
    heads = list(_BULLET.finditer(block)) or list(_PLAIN_BULLET.finditer(block))
    items = [next(str(value).strip() for value in match.groupdict().values() if value) for match in heads]
    return (items, len(items) == len(indents)) if items else None


def _are_values(items: list[str], names: set[str], *, number: bool, least: int = 2) -> bool:
    if len(items) < least or any(not _VALUE.fullmatch(item) for item in items):
        return False
    if any(item.replace("_", "").replace(".", "").lower() in names for item in items):
        return False
    return all(re.fullmatch(r"-?\d+", item) for item in items) if number else True


# Limits
# ------------------------------------------------------------------------------------------------------------

_NUMBER = r"`?\"?(-?\d[\d,]*(?:\.\d+)?)`?\"?"
_UNIT = r"(?:\s?(?:%|[A-Za-z]{1,12}))?(?:\s\([^)]{1,40}\))?"
_RANGES = (
    re.compile(rf"\bbetween {_NUMBER}(?P<one>{_UNIT}) (?:and|to) {_NUMBER}(?P<two>{_UNIT})", re.I),
    re.compile(
        r"\b(?:range|ranges|ranging|integer|number|value)s?(?: is| are| of|:| should be| must be)?(?: from|"
        rf" between| within)? {_NUMBER}(?P<one>) ?(?:-|–|to|through|up to) ?{_NUMBER}(?P<two>)(?!\d|[./-]\d)",
        re.I,
    ),
    re.compile(
        rf"\b(?:in|within) (?:the )?(?:range|interval)(?: of)?:? [\[(]?{_NUMBER}(?P<one>)(?:, ?| ?- ?| ?– ?|"
        rf" to | and ){_NUMBER}(?P<two>)(?![\d./-])",
        re.I,
    ),
    re.compile(
        rf"\b(?:value|values|integer|number|length|days|hours|minutes|seconds|must be|is|restore|range),?"
        rf" (?:range )?(?:from|within)"
        rf" {_NUMBER}(?P<one>(?: seconds?)?) ?(?:to|through|-|–) ?{_NUMBER}(?P<two>(?:"
        r" seconds?)?)(?!\d|[./-]\d| ?(?:minute|hour|day|week|year))",
        re.I,
    ),
    re.compile(
        rf"\bfrom {_NUMBER}(?P<one>) (?:to|through) {_NUMBER}(?P<two>)(?:,? inclusive| seconds| days)", re.I
    ),
    re.compile(rf"\((?:from )?{_NUMBER}(?P<one>) ?(?:-|–) ?{_NUMBER}(?P<two>)\)", re.I),
    re.compile(rf"\brange for this value is {_NUMBER}(?P<one>) - {_NUMBER}(?P<two>)", re.I),
    re.compile(
        rf"\bminimum(?: value)?(?: is| of|:)? {_NUMBER}(?P<one>)(?:,|;|\.)?(?: and)?(?: a| the)? maximum(?:"
        rf" value)?(?: is| of|:)? {_NUMBER}(?P<two>)",
        re.I,
    ),
)
_LEAST = (
    re.compile(
        r"\b(?:must|should|can) be (?:at least|greater than or equal to|>=|equal to or greater than)"
        rf" {_NUMBER}(?P<one>{_UNIT})",
        re.I,
    ),
    re.compile(
        r"(?:^|[.;,] )(?:the )?minimum(?: allowed)?(?: value)?(?: is| of|:)?"
        rf" {_NUMBER}(?P<one>{_UNIT})(?=[.;,]|$)",
        re.I,
    ),
)
_MOST = (
    re.compile(
        r"\b(?:must|should|can) (?:be (?:at most|less than or equal to|no more than|<=)|not be"
        rf" (?:greater|more|larger) than|not exceed) {_NUMBER}(?P<one>{_UNIT})",
        re.I,
    ),
    re.compile(
        r"(?:^|[.;,] )(?:the )?maximum(?: allowed)?(?: value)?(?: is| of|:)?"
        rf" {_NUMBER}(?P<one>{_UNIT})(?=[.;,]|$)",
        re.I,
    ),
)


def _numbers(text: str) -> tuple[Number | None, Number | None]:
    """Return the widest range in the text, so that a conditional range never rejects a valid value."""
    lows: list[Number] = []
    highs: list[Number] = []
    for match in _all(_RANGES, text):
        first, second = _unit(match.group("one")), _unit(match.group("two"))
        low, high = _float(match.group(1)), _float(match.group(3 if match.re.groups == 4 else 2))
        if low < high and (not first or first == second):
            lows.append(low)
            highs.append(high)
    if lows:
        return min(lows), max(highs)
    least = [_float(match.group(1)) for match in _all(_LEAST, text)]
    most = [_float(match.group(1)) for match in _all(_MOST, text)]
    return (min(least) if least else None), (max(most) if most else None)


def _all(patterns: Iterable[re.Pattern[str]], text: str) -> Iterator[re.Match[str]]:
    for pattern in patterns:
        yield from pattern.finditer(text)


def _unit(text: str) -> str:
    return re.sub(r"\(.*\)", "", text).strip().rstrip("s").lower()


def _float(text: str) -> Number:
    return float(text.replace(",", ""))


_CHARACTERS = (
    r"(?:ASCII |Unicode |UTF-8 |alphanumeric |lowercase |lower-case |hexadecimal )*(?:characters?|letters or"
    r" digits)\b"
)
_LENGTHS = (
    re.compile(rf"\bbetween (?P<low>\d+)(?: and |-| to |–)(?P<high>[\d,]+) {_CHARACTERS}", re.I),
    re.compile(rf"(?<![\d.])(?P<low>\d+) ?(?:-|–|to) ?(?P<high>[\d,]+) {_CHARACTERS}", re.I),
    re.compile(r"\blength (?:must be |of )?between (?P<low>\d+) and (?P<high>[\d,]+)", re.I),
    re.compile(
        rf"(?:\b|(?=\())(?:maximum(?: length| size)?(?: is| of|:)?|up to|at most|no more than|not"
        rf" exceed|limited to|less than or equal to|max(?:imum)? of|cannot exceed|longer than|\(max:?|max\.)"
        rf" (?P<high>[\d,]+) {_CHARACTERS}",
        re.I,
    ),
    re.compile(rf"\b(?P<high>[\d,]+) {_CHARACTERS} or (?:less|fewer)", re.I),
    re.compile(r"\bmaximum(?: allowed)? length(?: is| of|:) (?P<high>[\d,]+)(?! ?(?:bytes|KB|kB))\b", re.I),
)


_OF_SOME = re.compile(r"\s*(?:Windows|Linux)\b")


def _length(text: str) -> tuple[int | None, int | None]:
    """Return the widest limits on the length of the text."""
    if re.search(
        r"\b(?:each|every) (?:pattern|name|entry|value|key|item)|key and value|keys and"
        r" values|\bkeys?\b.*\bvalues?\b",
        text,
        re.I,
    ):
        return None, None
    lows: list[int] = []
    highs: list[int] = []
    for match in _all(_LENGTHS, text):
        if _OF_SOME.match(text[: match.start()].rsplit(". ", 1)[-1]):
            continue  # a limit of some resources of the type must not reject the others
        groups = match.groupdict()
        lows.append(int(groups.get("low") or 0))
        highs.append(int(groups["high"].replace(",", "")))
    return (min(lows) or None, max(highs)) if highs and max(highs) > 0 else (None, None)


_RESERVED = re.compile(r"\bprefix `([\w-]+[-_:/])` is reserved (?:for|by)\b")
_RFC1035 = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"


def _pattern(text: str) -> str:
    """Return the regular expression for a standard that the text names, such as RFC 1035 for gcp names."""
    if re.search(
        r"\b(?:comply|complies|conform|compliant) (?:with|to) RFC ?-?1035\b", text, re.I
    ) and re.search(r"1-63 characters", text):
        return _RFC1035
    if reserved := _RESERVED.findall(text):
        return f"(?!{'|'.join(re.escape(prefix) for prefix in dict.fromkeys(reserved))}).*"
    return ""

"""The package `random`: values of the requested length and alphabet, derived from the resource's id.

They are the same in every rehearsal and therefore no secrets: never use one elsewhere.
"""

from __future__ import annotations

import base64
import random
import uuid
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel
from trainfleet.rehearsal.simulation.pulumi_values import secret

_LOWER, _UPPER, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_SPECIAL = "!@#$%&*()-_=+[]{}<>:?"
_ADVERBS = [
    "boldly",
    "busily",
    "calmly",
    "deeply",
    "easily",
    "evenly",
    "fairly",
    "firmly",
    "freely",
    "gently",
    "happily",
    "kindly",
    "lightly",
]
_ADJECTIVES = [
    "able",
    "alert",
    "brave",
    "calm",
    "clever",
    "eager",
    "exact",
    "fair",
    "fine",
    "glad",
    "great",
    "keen",
    "kind",
    "loyal",
    "neat",
    "quick",
]
_ANIMALS = [
    "ant",
    "bat",
    "bear",
    "bee",
    "cat",
    "cod",
    "cow",
    "crab",
    "crow",
    "deer",
    "dog",
    "dove",
    "duck",
    "eel",
    "elk",
    "fish",
    "fox",
    "frog",
    "goat",
    "hen",
    "owl",
]
_BCRYPT = _UPPER + _LOWER + _DIGITS + "./"


class RandomModel(ComputedModel):
    """Every input, `keepers` included, replaces the resource."""

    replaced_by_any_change = True
    source = "terraform-provider-random internal/provider/resource_*.go, plan modifiers RequiresReplace"

    def make_id(self, token: str, inputs: dict[str, Any], name: str, random: str) -> str:  # noqa: ARG002 - shared signature
        kind = token.rsplit(":", 1)[-1]
        outputs = _values(kind, inputs, random[:32])
        # The provider's ids of passwords, bytes, shuffles and integers are not unique: here they are.
        result = {"RandomPet": "id", "RandomId": "b64Url"}.get(kind) or (
            "result" if kind in ("RandomString", "RandomUuid", "RandomUuid4", "RandomUuid7") else ""
        )
        return str(outputs[result]).removeprefix(_prefix(kind, inputs)) if result else random[:32]

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:
        if kind == "RandomId":
            return _of_bytes(base64.urlsafe_b64decode(seed + "=="), _prefix(kind, inputs))
        if kind in ("RandomString", "RandomUuid", "RandomUuid4", "RandomUuid7"):
            return {"result": seed}
        return {} if kind == "RandomPet" else _values(kind, inputs, seed)

    def mistakes(self, kind: str, inputs: dict[str, Any]) -> list[Mistake]:
        if kind == "RandomInteger" and int(inputs["min"]) > int(inputs["max"]):
            return [Mistake("min", f"{inputs['min']} is above `max` ({inputs['max']})", source=self.source)]
        name = {"RandomId": "byteLength"}.get(kind, "length")
        length = inputs.get(name)
        if length is not None and int(length) < 1:
            return [Mistake(name, f"{length} is out of range", "it must be at least 1", source=self.source)]
        least = sum(int(inputs.get(key) or 0) for key in ("minLower", "minUpper", "minNumeric", "minSpecial"))
        if least > int(length or least):
            return [
                Mistake(name, f"{length} is less than the sum of the minima ({least})", source=self.source)
            ]
        return []


def _values(kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:  # noqa: PLR0911 - one per kind
    draw = random.Random(seed)
    if kind in ("RandomString", "RandomPassword"):
        text = _text(inputs, draw)
        if kind == "RandomString":
            return {"result": text}
        bcrypt = "$2a$10$" + "".join(draw.choices(_BCRYPT, k=53))
        return {"result": secret(text), "bcryptHash": secret(bcrypt)}
    if kind == "RandomPet":
        words = [draw.choice(_ADVERBS) for _ in range(int(inputs.get("length") or 2) - 2)]
        words += [draw.choice(_ADJECTIVES), draw.choice(_ANIMALS)][-int(inputs.get("length") or 2) :]
        separator = "-" if inputs.get("separator") is None else inputs["separator"]
        return {"id": separator.join([*([inputs["prefix"]] if inputs.get("prefix") else []), *words])}
    if kind == "RandomId":
        return _of_bytes(draw.randbytes(int(inputs["byteLength"])), _prefix(kind, inputs))
    if kind == "RandomBytes":
        own = draw.randbytes(int(inputs["length"]))
        return {"base64": secret(base64.b64encode(own).decode()), "hex": secret(own.hex())}
    if kind == "RandomInteger":
        return {"result": draw.randint(int(inputs["min"]), int(inputs["max"]))}
    if kind == "RandomShuffle":
        given, count = list(inputs["inputs"]), inputs.get("resultCount")
        expected, results = int(len(given) if count is None else count), list[Any]()
        while given and len(results) < expected:
            results += draw.sample(given, len(given))
        return {"results": results[:expected]}
    if kind.startswith("RandomUuid"):
        drawn = uuid.UUID(int=draw.getrandbits(128), version=4)
        return {"result": str(uuid.UUID(int=drawn.int ^ (3 << 76))) if kind.endswith("7") else str(drawn)}
    return {}


def _prefix(kind: str, inputs: dict[str, Any]) -> str:
    return str(inputs.get("prefix") or "") if kind == "RandomId" else ""


def _of_bytes(own: bytes, prefix: str) -> dict[str, Any]:
    return {
        "b64Url": prefix + base64.urlsafe_b64encode(own).decode().rstrip("="),
        "b64Std": prefix + base64.b64encode(own).decode(),
        "hex": prefix + own.hex(),
        "dec": prefix + str(int.from_bytes(own)),
    }


def _text(inputs: dict[str, Any], draw: random.Random) -> str:
    def expected(*names: str) -> bool:
        return all(str(inputs.get(name)).lower() != "false" for name in names)

    classes = (
        ("minLower", _LOWER, expected("lower")),
        ("minUpper", _UPPER, expected("upper")),
        ("minNumeric", _DIGITS, expected("numeric", "number")),
        ("minSpecial", inputs.get("overrideSpecial") or _SPECIAL, expected("special")),
    )
    alphabet = "".join(letters for _, letters, used in classes if used)
    letters = [
        draw.choice(own)
        for least, own, used in classes
        for _ in range(int(inputs.get(least) or 0) if used else 0)
    ]
    letters += draw.choices(alphabet or _LOWER, k=int(inputs["length"]) - len(letters))
    draw.shuffle(letters)
    return "".join(letters)

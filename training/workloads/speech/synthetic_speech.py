"""German sentences spoken by espeak-ng, for runs without recordings. Not a measure of recognising human
speech.

The library comes from the package espeakng-loader or from Debian's espeak-ng. A sentence, not an utterance,
decides the split, so that no test sentence is trained on in another voice.
"""

from __future__ import annotations

import _ctypes
import ctypes
import ctypes.util
import functools
import hashlib
import itertools
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.training.data import SplitRule
from trainfleet.training.workloads.speech.settings import SoundSettings

WHO = (
    *(
        "der hund",
        "die katze",
        "das kind",
        "mein bruder",
        "meine schwester",
        "der alte mann",
        "die junge frau",
        "unser lehrer",
    ),
    *("der bäcker", "die ärztin", "ein vogel", "das pferd"),
)
DOES = (
    *(
        "schläft",
        "wartet",
        "singt",
        "spielt",
        "liest",
        "arbeitet",
        "lacht",
        "träumt",
        "läuft",
        "sitzt",
        "tanzt",
        "schweigt",
    ),
    *("isst", "trinkt", "redet", "lernt"),
)
WHEN = (
    "heute",
    "morgen",
    "immer",
    "abends",
    "nachts",
    "im sommer",
    "im winter",
    "am montag",
    "am freitag",
    "seit gestern",
    "um zehn uhr",
    "oft",
)
WHERE = (
    *(
        "im garten",
        "zu hause",
        "auf der straße",
        "in der küche",
        "am fluss",
        "im wald",
        "vor der tür",
        "unter dem baum",
    ),
    *("in der schule", "am fenster", "auf dem dach", "hinter dem haus"),
)
FIXED = (
    *(
        "guten morgen",
        "guten abend",
        "wie geht es dir",
        "danke gut",
        "bis morgen",
        "bitte schön",
        "alles gute",
        "es regnet seit gestern",
    ),
    *(
        "die sonne scheint",
        "der zug hat verspätung",
        "ich möchte einen kaffee",
        "wo ist der bahnhof",
        "das wetter ist schön",
        "komm bitte mit",
    ),
    *(
        "eins zwei drei vier fünf",
        "sechs sieben acht neun zehn",
        "am anfang war es dunkel",
        "morgen wird es kalt",
        "das ist eine gute frage",
    ),
)
_SYNCHRONOUS, _UTF8, _RATE_PARAMETER = 2, 1, 1
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def sentences() -> list[str]:
    """Some thousand sentences of three to nine words, in a fixed pseudo-random order."""
    built = [" ".join(words) for words in itertools.product(WHO, DOES, WHEN)]
    built += [" ".join(words) for words in itertools.product(WHO, DOES, WHERE)]
    built += [
        f"{when} {does} {who} {where}"
        for who, does, when, where in zip(WHO * 48, DOES * 36, WHEN * 48, WHERE * 48, strict=True)
    ]
    return sorted({*built, *FIXED}, key=lambda each: hashlib.sha256(each.encode()).digest())


def listing(settings: SoundSettings) -> str:
    """The utterances as JSON lines: text, voice, speed and split. The sentence alone decides the split."""
    rule = SplitRule(settings.validation_share, settings.test_share, settings.split_seed)
    texts, variants = sentences(), list(itertools.product(settings.voices, settings.speeds))
    rows = []
    for number in range(settings.utterances):
        text, lap = texts[number % len(texts)], number // len(texts)
        at = int.from_bytes(hashlib.sha256(f"{text} {lap}".encode()).digest()[:4]) % len(variants)
        rows.append(
            {"text": text, "voice": variants[at][0], "speed": variants[at][1], "split": rule.of_name(text)}
        )
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def speak(text: str, voice: str, speed: int) -> tuple[NDArray[np.int16], int]:
    """An utterance and its rate in Hz, always the same.

    The library keeps state (wave phase, noise), so it is loaded again for each utterance (4 ms) and seeded.

    Raises:
        InputError: espeak-ng is not installed, or has no such voice.
    """
    path, data = _library_paths()
    library = ctypes.CDLL(path)
    pieces: list[NDArray[np.int16]] = []

    def collect(samples: Any, count: int, _events: Any) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = _CALLBACK(collect)
    try:
        rate = int(library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode() if data else None, 0))
        if rate <= 0:
            raise InputError(
                "espeak-ng does not start",
                [Problem(path, f"finds no data in {data or 'its default folder'}", "reinstall it")],
            )
        if hasattr(library, "espeak_ng_SetRandSeed"):  # from 1.52 on; older ones have a fixed seed
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        library.espeak_SetSynthCallback(callback)
        if library.espeak_SetVoiceByName(voice.encode()):
            fix = "a language such as de, with a variant such as de+f2"
            raise InputError(
                "espeak-ng has no such voice", [Problem("workload.data.voices", f"`{voice}`", fix)]
            )
        library.espeak_SetParameter(_RATE_PARAMETER, speed, 0)
        encoded = text.encode()
        if library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None):
            raise InputError(
                "espeak-ng cannot speak",
                [Problem(text, f"in the voice `{voice}` at {speed} words per minute")],
            )
    finally:
        library.espeak_Terminate()
        _ctypes.dlclose(library._handle)
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int16), rate


@functools.cache
def _library_paths() -> tuple[str, str | None]:
    """The library's file, and its data folder if it is not the default."""
    try:
        import espeakng_loader  # type: ignore[import-untyped]  # it ships no types
    except ImportError:
        path = ctypes.util.find_library("espeak-ng")
        if path is None:
            fix = (
                "pip install espeakng-loader, apt install espeak-ng, or use recordings (workload.data.source)"
            )
            raise InputError(
                "espeak-ng is not installed",
                [Problem("workload.data.source", "`spoken` requires it", fix)],
            ) from None
        return path, None
    return str(espeakng_loader.get_library_path()), str(espeakng_loader.get_data_path())

"""German sentences spoken by espeak-ng: the stand-in for recordings where none can be had. Not people's
speech, and no measure of it.

Used by `trainfleet.training.workloads.speech.audio`. The library comes with the package espeakng-loader, or
with Debian's espeak-ng. Easy to get
wrong: a sentence decides the split, not the utterance, or a model would be tested on sentences that it heard
in another voice;
and the library keeps state (the phase of its waves, its noise), so an utterance would depend on those before
it.
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
    """Some thousand sentences of three to nine words, in an order that looks random and is always the same."""
    built = [" ".join(words) for words in itertools.product(WHO, DOES, WHEN)]
    built += [" ".join(words) for words in itertools.product(WHO, DOES, WHERE)]
    built += [
        f"{when} {does} {who} {where}"
        for who, does, when, where in zip(WHO * 48, DOES * 36, WHEN * 48, WHERE * 48, strict=True)
    ]
    return sorted({*built, *FIXED}, key=lambda each: hashlib.sha256(each.encode()).digest())


def listing(settings: SoundSettings) -> str:
    """What is to be spoken, as JSON lines: text, voice, speed and the split, which the sentence alone
    decides.
    """
    rule = SplitRule(settings.validation_share, settings.test_share, settings.split_seed)
    texts, ways = sentences(), list(itertools.product(settings.voices, settings.speeds))
    rows = []
    for number in range(settings.utterances):
        text, lap = texts[number % len(texts)], number // len(texts)
        at = int.from_bytes(hashlib.sha256(f"{text} {lap}".encode()).digest()[:4]) % len(ways)
        rows.append({"text": text, "voice": ways[at][0], "speed": ways[at][1], "split": rule.of_name(text)})
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def speak(text: str, voice: str, speed: int) -> tuple[NDArray[np.int16], int]:
    """An utterance and its rate in Hz; the same every time, so the library is loaded anew for each (4 ms) and
    its noise seeded.

    Raises:
        InputError: espeak-ng is not there, or has no such voice.
    """
    path, data = _where()
    library = ctypes.CDLL(path)
    heard: list[NDArray[np.int16]] = []

    def hear(samples: Any, count: int, _events: Any) -> int:
        if samples and count:
            heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = _CALLBACK(hear)
    try:
        rate = int(library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode() if data else None, 0))
        if rate <= 0:
            raise InputError(
                "espeak-ng does not start",
                [Problem(path, f"finds no data in {data or 'its usual place'}", "install it anew")],
            )
        if hasattr(
            library, "espeak_ng_SetRandSeed"
        ):  # from 1.52 on; older ones start from the same seed anyway
            library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        library.espeak_SetSynthCallback(callback)
        if library.espeak_SetVoiceByName(voice.encode()):
            fix = "a language such as de, with a variant such as de+f2"
            raise InputError(
                "espeak-ng has no such voice", [Problem("workload.data.voices", f"`{voice}`", fix)]
            )
        library.espeak_SetParameter(_RATE_PARAMETER, speed, 0)
        said = text.encode()
        if library.espeak_Synth(said, len(said) + 1, 0, 1, 0, _UTF8, None, None):
            raise InputError(
                "espeak-ng cannot speak",
                [Problem(text, f"in the voice `{voice}` at {speed} words per minute")],
            )
    finally:
        library.espeak_Terminate()
        _ctypes.dlclose(library._handle)
    return np.concatenate(heard) if heard else np.zeros(0, np.int16), rate


@functools.cache
def _where() -> tuple[str, str | None]:
    """The library's file, and its data's folder where it is not the usual one."""
    try:
        import espeakng_loader  # type: ignore[import-untyped]  # it ships no types
    except ImportError:
        path = ctypes.util.find_library("espeak-ng")
        if path is None:
            fix = "pip install espeakng-loader, apt install espeak-ng, or recordings of your own (workload.data.source)"
            raise InputError(
                "espeak-ng is not installed",
                [Problem("workload.data.source", "`spoken` is spoken by it", fix)],
            ) from None
        return path, None
    return str(espeakng_loader.get_library_path()), str(espeakng_loader.get_data_path())

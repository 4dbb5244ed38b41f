"""What `LanguageModel.predict` takes and gives: settings of each row, and pieces of text as they are made."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trainfleet.errors import InputError
from trainfleet.pydantic_messages import explain
from trainfleet.training.workloads.lm.settings import SamplingSettings


def options_of(settings: Mapping[str, Any], count: int) -> list[SamplingSettings]:
    """The settings of each of `count` rows. A list has a value per row.

    Raises:
        InputError: a value is out of range, or a setting is unknown.
    """
    rows = [
        {name: value[row] if isinstance(value, list | tuple) else value for name, value in settings.items()}
        for row in range(count)
    ]
    try:
        return [SamplingSettings.model_validate(row) for row in rows]
    except ValidationError as error:
        problems = [explain(each, SamplingSettings) for each in error.errors(include_url=False)]
        raise InputError("invalid sampling settings", problems) from error


class TextPieces:
    """Turns the tokens of several rows into pieces of text, which end with a whole character."""

    def __init__(
        self, spelling: Sequence[bytes], end: int, rows: int, hear: Callable[[int, str], Any]
    ) -> None:
        self._spelling, self._end, self._hear = spelling, end, hear
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(rows)]

    def add(self, row: int, token: int) -> None:
        """A row's next token."""
        if token != self._end:
            self._tell(row, self._decoders[row].decode(self._spelling[token]))

    def finish(self) -> None:
        """Tell what is left: bytes that are not a whole character."""
        for row, decoder in enumerate(self._decoders):
            self._tell(row, decoder.decode(b"", final=True))

    def _tell(self, row: int, text: str) -> None:
        if text:
            self._hear(row, text)

"""Conversations to tokens with the chat template of a model's tokenizer, and which of the tokens are answers.

Answers are what the template puts between `{% generation %}` and `{% endgeneration %}`. For a template
without these, an answer is what the whole conversation has after the prompt for it, as the tokens of its
first messages tell; a template that writes the first messages of a conversation in another way than the
whole is rejected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.data import BadRowError
from trainfleet.training.workloads.lm.hf_tokenizer import ModelEncoder, load_tokenizer, model_encoder
from trainfleet.training.workloads.model_folder import need_transformers

CHAT_TEMPLATE = "chat_template.jinja"
ANSWERS = "assistant"
"""The role of the messages that are predicted."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatEncoder(ModelEncoder):
    """A tokenizer with its chat template.

    Attributes:
        template: the text of the template (jinja).
        special: names and texts of the special tokens that it may use, such as `bos_token`.
    """

    template: str
    special: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        return f"{super().key} chat {self.template_digest} {json.dumps(self.special)}"

    @property
    def encoder_digest(self) -> str:
        """Identifies tokenizer and template."""
        return hashlib.sha256(self.key.encode()).hexdigest()

    @property
    def template_digest(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()

    @property
    def marks_answers(self) -> bool:
        """Whether the template says itself what an answer is."""
        return _GENERATION.search(self.template) is not None

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """The tokens of a conversation, and for each 1 if it belongs to an answer, else 0.

        Raises:
            BadRowError: the template does not accept the messages, or does not tell what an answer is.
        """
        if self.marks_answers:
            found = self._apply(messages, return_dict=True, return_assistant_tokens_mask=True)
            return list(found["input_ids"]), list(found["assistant_masks"])
        tokens = self._tokens(messages)
        mask = [0] * len(tokens)
        for number, message in enumerate(messages):
            if message["role"] == ANSWERS:
                if number == 0:
                    raise BadRowError(
                        "begins with an answer, of which the chat template marks no beginning; mark it there "
                        "with {% generation %}"
                    )
                prompt = self._tokens(messages[:number], add_generation_prompt=True)
                end = self._tokens(messages[: number + 1])
                if tokens[: len(prompt)] != prompt or end[: len(prompt)] != prompt:
                    _refuse_prefix(f"the prompt for message {number + 1}")
                if tokens[: len(end)] != end:
                    _refuse_prefix(f"the conversation up to message {number + 1}")
                mask[len(prompt) : len(end)] = [1] * (len(end) - len(prompt))
        return tokens, mask

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens before the next answer.

        Raises:
            BadRowError: the template does not accept the messages.
        """
        return self._tokens(messages, add_generation_prompt=True)

    def _tokens(self, messages: Sequence[Message], **options: Any) -> list[int]:
        return list(self._apply(messages, return_dict=True, **options)["input_ids"])

    def _apply(self, messages: Sequence[Message], **options: Any) -> Any:
        from jinja2 import TemplateError

        tokenizer = _chat_tokenizer(self.tokenizer, self.template)
        try:
            return tokenizer.apply_chat_template(
                list(messages), tokenize=True, **dict(self.special), **options
            )
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise BadRowError(f"is rejected by the chat template ({first})") from error


def chat_encoder(name: str, *, tokenizer_only: bool, template: str | None = None) -> ChatEncoder:
    """The encoder of a Hugging Face model or tokenizer with a chat template, by name or folder.

    Args:
        name: of the model or tokenizer.
        tokenizer_only: whether there may be no model, whose vocabulary counts otherwise.
        template: instead of the tokenizer's own.

    Raises:
        InputError: there is none, or it has no tokenizer.json or no chat template.
    """
    encoder = model_encoder(name, tokenizer_only)
    tokenizer = load_tokenizer(name)
    if template is None:
        try:
            template = str(tokenizer.get_chat_template())
        except ValueError as error:
            what = f"the tokenizer of `{name}` has no chat template, which conversations require"
            fix = f"use an instruction-tuned model, or put a {CHAT_TEMPLATE} into a copy of its folder"
            key = "workload.model.tokenizer" if tokenizer_only else "workload.model.pretrained"
            raise InputError("there is no chat template", [Problem(key, what, fix)]) from error
    special = tuple(
        sorted((key, text) for key, text in tokenizer.special_tokens_map.items() if isinstance(text, str))
    )
    return ChatEncoder(encoder.tokenizer, encoder.end, encoder.vocabulary, template, special)


def messages_of(value: Any) -> list[dict[str, Any]]:
    """The messages of a row: at least one, each with a role and a text.

    Raises:
        BadRowError: they are something else; the message says which and how.
    """
    if not isinstance(value, list | tuple) or not value:
        raise BadRowError(
            "holds no messages" if value in (None, [], ()) else f"holds {type(value).__name__}, not messages"
        )
    found = []
    for number, each in enumerate(value, start=1):
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str):
            raise BadRowError(f"message {number} has no role")
        if not isinstance(each.get("content"), str):
            kind = type(each.get("content")).__name__
            raise BadRowError(f"message {number} has a content of type {kind} instead of text")
        if each["role"] == ANSWERS and not each["content"].strip():
            raise BadRowError(f"message {number} is an empty answer")
        # Columns of parquet have every key of any message in each.
        found.append({key: member for key, member in each.items() if member is not None})
    return found


def prompts_of(encoder: ChatEncoder, column: str, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The tokens before the next answer, of rows with messages in `column`, or with `text`, which is a
    message of a user.

    Raises:
        InputError: every row that cannot be read, by its number.
    """
    prompts, problems = [], []
    for number, row in enumerate(rows):
        try:
            if column not in row and not isinstance(row.get("text"), str):
                raise BadRowError(f"has no {column} and no text")
            asked = row.get(column, [{"role": "user", "content": row.get("text")}])
            prompts.append(encoder.prompt(messages_of(asked)))
        except BadRowError as error:
            example = f'{{"{column}": [{{"role": "user", "content": "a question"}}]}}'
            problems.append(Problem(f"row {number}", str(error), example))
    if problems:
        raise InputError("some rows have no messages", problems)
    return prompts


def _refuse_prefix(what: str) -> None:
    raise BadRowError(
        f"with the chat template, the tokens of {what} are not the beginning of the whole conversation's, so "
        "what the answer is does not follow; mark it in the template with {% generation %}"
    )


@lru_cache(maxsize=4)
def _chat_tokenizer(document: bytes, template: str) -> Any:
    from tokenizers import Tokenizer

    tools = need_transformers("workload.data.conversations")
    backend = Tokenizer.from_str(document.decode())
    return tools.PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)

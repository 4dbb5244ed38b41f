"""Recipe settings of the language model: shape, text and tokens. Without torch, so that validation is fast.

`width` must be divisible by `heads` into an even number, because rotary positions rotate pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from trainfleet.training.workloads.settings import (
    BrokenRule,
    LoraSettings,
    RawData,
    RecipeView,
    Section,
    WorkloadSettings,
)


class GptSettings(Section):
    """The shape of the GPT; or a pretrained model, for which only `context`, `lora` and `loss_chunk` count;
    or an architecture of transformers with random weights, for which `config`, `tokenizer`, `context` and
    `loss_chunk` do.
    """

    pretrained: str | None = Field(
        None, description="A Hugging Face causal model by name or folder; goes with data.tokens=model."
    )
    architecture: str | None = Field(
        None,
        description="A causal architecture of transformers, such as llama, with random weights: the "
        "`model_type` of its configuration.",
    )
    config: dict[str, Any] = Field(
        {},
        description="Values of the architecture's configuration, such as hidden_size; others are its "
        "defaults. The vocabulary and the positions follow from the tokens and `context`.",
    )
    tokenizer: str | None = Field(
        None,
        description="A Hugging Face tokenizer by name or folder, for an architecture with data.tokens=model.",
    )
    lora: LoraSettings | None = Field(
        None, description="Train low-rank adapters on frozen pretrained weights; null: train all weights."
    )
    layers: int = Field(4, ge=1, description="Number of transformer blocks.")
    width: int = Field(128, ge=2, description="Size of the hidden state.")
    heads: int = Field(4, ge=1, description="Number of attention heads.")
    context: int = Field(128, ge=2, description="Tokens per sample.")
    mlp: Literal["swiglu", "gelu"] = Field("swiglu", description="Kind of the MLP.")
    mlp_ratio: float = Field(
        8 / 3,
        gt=0,
        description="Hidden width of the MLP over `width`; 8/3 gives SwiGLU the size of a plain MLP of 4.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout rate.")
    loss_chunk: int = Field(
        4096,
        ge=1,
        description="Tokens whose logits exist at a time in the loss; fewer use less memory, and are slower.",
    )

    @property
    def own(self) -> bool:
        """Whether the model is the GPT, and not one of transformers."""
        return self.pretrained is None and self.architecture is None


class SamplingSettings(Section):
    """How `predict` and `serve` continue a text."""

    max_tokens: int = Field(64, ge=1, description="Maximum number of new tokens.")
    temperature: float = Field(
        0.8, ge=0, description="0: always the most likely token; 1: as the model's distribution."
    )
    top_k: int = Field(50, ge=0, description="Sample from the k most likely tokens; 0: from all.")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the fewest tokens that have this probability together.",
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="The same text, settings and seed give the same continuation, in any batch.",
    )


class ConversationSettings(Section):
    """Conversations instead of text, written by the chat template of the model's tokenizer. Only the answers
    (messages of the role `assistant`) are predicted.
    """

    column: str = Field(
        "messages",
        description="Which column has the conversations: lists of messages with `role` and `content`.",
    )
    packing: bool = Field(
        True,
        description="Several conversations per sample, none of which attends to another; false: one.",
    )
    too_long: Literal["refuse", "truncate"] = Field(
        "refuse",
        description="What happens to a conversation longer than the context: it cannot be used (see "
        "`integrity`), or its end is cut off. Both are counted and named.",
    )


class TextSettings(Section):
    """Which text, and how it is split and turned into tokens."""

    source: str = Field(
        "stdlib",
        description="`stdlib`: the Python standard library's own source; else a folder, a file, an object "
        "store's URL, hf:NAME, or prepared data.",
    )
    glob: str = Field(
        "**/*.py",
        description="Which files of a folder: a text is a document; of .parquet and .jsonl each row is one.",
    )
    column: str = Field("text", description="Which column of parquet files, JSON lines and datasets.")
    conversations: ConversationSettings | None = Field(
        None, description="Train on the answers of conversations; null: on text."
    )
    tokens: Literal["bytes", "bpe", "model"] = Field(
        "bytes", description="`model`: those of the pretrained model, or of `model.tokenizer`."
    )
    vocabulary: int = Field(
        8192, ge=257, le=65536, description="Size of the BPE vocabulary, trained on the training split."
    )
    validation_share: float = Field(0.05, gt=0, lt=0.5, description="Share of the files (parquet: rows).")
    test_share: float = Field(0.05, gt=0, lt=0.5, description="Share of the files that form the test split.")
    split_seed: int = Field(
        0, ge=0, description="Changes which file goes where, independent of the run's seed."
    )
    integrity: Literal["refuse", "quarantine"] = Field(
        "refuse",
        description="What happens to files and rows that cannot be used: an end, or left out and named.",
    )
    quarantine_limit: float = Field(
        0.01, ge=0, le=1, description="The largest share of files and rows that `quarantine` leaves out."
    )
    stream: Literal["auto"] | bool = Field(
        "auto",
        description="Read block by block in a windowed shuffle (`order`); auto: from 4 GiB of tokens on.",
    )
    block_rows: int | None = Field(
        None,
        ge=1,
        description="Samples per block file; null: as many as make about 8 MiB, from "
        "0.5 TB on more, up to 32 MiB.",
    )
    memory_mib: int = Field(
        1024, ge=1, description="Memory for open blocks per worker that streams; elsewhere all are kept open."
    )
    disk_gib: float = Field(64, gt=0, description="Disk for blocks of an object store per machine.")
    store: str | None = Field(
        None,
        description="Object store's URL or shared folder: prepared data that it holds is read from there, "
        "other data is copied to it; null: each machine prepares its own.",
    )


_OF_GPT = ("layers", "width", "heads", "mlp", "mlp_ratio", "dropout")


class LmSettings(WorkloadSettings):
    """A language model on text."""

    metric_names: ClassVar[tuple[str, ...]] = ("nats_per_byte", "accuracy")
    name: Literal["lm"]
    model: GptSettings = GptSettings()
    data: TextSettings = TextSettings()

    def reads_weights(self) -> bool:
        return self.model.pretrained is not None

    def raw_data(self) -> Iterator[RawData]:
        data = self.data
        if data.source != "stdlib":
            column = data.column if data.conversations is None else data.conversations.column
            yield RawData(data.source, data.glob, (column,), strict=data.integrity == "refuse")

    def check_recipe(self, recipe: RecipeView) -> Iterator[BrokenRule]:
        model, tokens = self.model, self.data.tokens
        yield from self._architecture_rules()
        yield from self._conversation_rules()
        if model.own and model.width % (2 * model.heads):
            what = f"{model.width} cannot be split into {model.heads} heads of even width"
            yield "workload.model.width workload.model.heads", what, f"a multiple of {2 * model.heads}"
        if model.pretrained is not None and tokens != "model":
            yield (
                "workload.data.tokens workload.model.pretrained",
                f"`{tokens}` are not the tokens that the pretrained model knows",
                "model",
            )
        if model.pretrained is None and model.tokenizer is None and tokens == "model":
            what = "there is no pretrained model or tokenizer whose tokens these could be"
            yield (
                "workload.data.tokens workload.model.pretrained",
                what,
                "bytes or bpe, or name workload.model.pretrained or workload.model.tokenizer",
            )
        if model.pretrained is None and model.lora is not None:
            what = "LoRA leaves the model's own weights as they are, so they must be pretrained"
            yield (
                "workload.model.lora workload.model.pretrained",
                what,
                "name workload.model.pretrained, or leave it out",
            )
        if model.architecture is not None and recipe.sharding.meta_init is True:
            what = "an architecture of transformers initialises its weights as a whole"
            yield "sharding.meta_init workload.model.architecture", what, "sharding.meta_init=false"

    def _architecture_rules(self) -> Iterator[BrokenRule]:
        model = self.model
        key = "workload.model.architecture"
        if model.architecture is None:
            if model.config:
                what = "these values configure an architecture, and there is none"
                yield f"workload.model.config {key}", what, f"name {key}, or leave it out"
            if model.tokenizer is not None:
                what = "only an architecture has a tokenizer of its own choice"
                yield f"workload.model.tokenizer {key}", what, f"name {key}, or leave it out"
            return
        if model.pretrained is not None:
            what = "a pretrained model has its own architecture"
            yield f"{key} workload.model.pretrained", what, "leave one of them out"
        if model.tokenizer is not None and self.data.tokens != "model":
            what = f"`{self.data.tokens}` do not use a tokenizer of Hugging Face"
            yield "workload.model.tokenizer workload.data.tokens", what, "workload.data.tokens=model"
        for name in _OF_GPT:
            if getattr(model, name) != GptSettings.model_fields[name].default:
                what = "belongs to the GPT, not to an architecture of transformers"
                yield f"workload.model.{name} {key}", what, "leave it out, and use workload.model.config"

    def _conversation_rules(self) -> Iterator[BrokenRule]:
        data, key = self.data, "workload.data.conversations"
        if data.conversations is None:
            return
        if data.tokens != "model":
            what = f"`{data.tokens}` have no chat template"
            yield f"workload.data.tokens {key}", what, "model"
        if data.source == "stdlib":
            yield f"workload.data.source {key}", "has no conversations", "name .jsonl or .parquet files"
        if data.column != TextSettings.model_fields["column"].default:
            what = "is a column of text, and the recipe reads conversations"
            yield f"workload.data.column {key}", what, f"{key}.column"

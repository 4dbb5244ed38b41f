"""What a recipe may say about the language model: its shape, its text and its tokens. Without torch, so that checks are quick.

Used by `training.sections`. Easy to get wrong: `width` must be divisible by `heads` into an even number (rotary positions
turn pairs of numbers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from training.workloads.settings import Broken, Part, WorkloadSettings

if TYPE_CHECKING:
    from training.recipe import Recipe


class GptSettings(Part):
    """The shape of the GPT."""

    layers: int = Field(4, ge=1)
    width: int = Field(128, ge=2)
    heads: int = Field(4, ge=1)
    context: int = Field(128, ge=2, description="Tokens per sample.")
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    mlp_ratio: float = Field(8 / 3, gt=0, description="Hidden width of the MLP over `width`; 8/3 gives SwiGLU the size of a plain MLP of 4.")
    dropout: float = Field(0.0, ge=0, lt=1)


class TextSettings(Part):
    """Which text, and how it is split and turned into tokens."""

    source: str = Field(
        "stdlib",
        description="`stdlib`: the Python standard library's own source; else a folder, a file, an object store's URL, hf:NAME, or prepared data.",
    )
    glob: str = Field("**/*.py", description="Which files of a folder: a text is a document; of .parquet and .jsonl each row is one.")
    column: str = Field("text", description="Which column of parquet files, JSON lines and datasets.")
    tokens: Literal["bytes", "bpe"] = "bytes"
    vocabulary: int = Field(8192, ge=257, le=65536, description="Size of the BPE vocabulary, trained on the training split.")
    validation_share: float = Field(0.05, gt=0, lt=0.5, description="Share of the files (parquet: rows).")
    test_share: float = Field(0.05, gt=0, lt=0.5)
    split_seed: int = Field(0, ge=0, description="Changes which file goes where, independent of the run's seed.")
    integrity: Literal["refuse", "quarantine"] = Field(
        "refuse", description="What happens to files and rows that cannot be used: an end, or left out and named."
    )
    quarantine_limit: float = Field(0.01, ge=0, le=1, description="The largest share of files and rows that `quarantine` leaves out.")
    stream: Literal["auto"] | bool = Field("auto", description="Read block by block in a windowed shuffle (`order`); auto: from 4 GiB of tokens on.")
    block_rows: int | None = Field(None, ge=1, description="Samples per block file; null: as many as make about 8 MiB.")
    memory_mib: int = Field(1024, ge=1, description="Memory for open blocks per worker that streams; elsewhere all are kept open.")
    disk_gib: float = Field(64, gt=0, description="Disk for blocks of an object store per machine.")


class LmSettings(WorkloadSettings):
    """A language model on text."""

    figures: ClassVar[tuple[str, ...]] = ("nats_per_byte", "accuracy")
    name: Literal["lm"]
    model: GptSettings = GptSettings()
    data: TextSettings = TextSettings()

    def broken(self, recipe: Recipe) -> Iterator[Broken]:  # noqa: ARG002 - its rules are about the model alone
        if self.model.width % (2 * self.model.heads):
            what = f"{self.model.width} cannot be cut into {self.model.heads} heads of even width"
            yield "workload.model.width workload.model.heads", what, f"a multiple of {2 * self.model.heads}"

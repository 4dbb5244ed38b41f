"""Recipe settings of speech to text: model, audio and transcripts. Without torch.

`spoken` means sentences spoken by espeak-ng: something real to learn on a laptop, but no measure of human
speech.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from trainfleet.training.workloads.settings import (
    BrokenRule,
    LoraSettings,
    RawData,
    RecipeView,
    Section,
    WorkloadSettings,
)

GERMAN = "abcdefghijklmnopqrstuvwxyzäöüß'"


class SpeechModelSettings(Section):
    """A small recogniser made here, or a pretrained one of Hugging Face's."""

    kind: Literal["ctc", "seq2seq"] = Field(
        "ctc", description="`ctc`: letters per frame (wav2vec2 and its kin); `seq2seq`: Whisper and its kin."
    )
    pretrained: str | None = Field(
        None,
        description="A Hugging Face model by name or folder; null: a small one, from the first weight on.",
    )
    alphabet: str | None = Field(
        GERMAN,
        min_length=2,
        description="Letters that are learnt, besides the blank between words; null: those of the "
        "pretrained model.",
    )
    width: int = Field(128, ge=8, description="Of the small model.")
    layers: int = Field(3, ge=1, description="Number of Conformer blocks.")
    heads: int = Field(4, ge=1, description="Number of attention heads.")
    kernel: int = Field(15, ge=3, description="Frames that a layer's convolution spans.")
    mels: int = Field(40, ge=8, le=128, description="Frequency bands of its spectrogram.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout rate.")
    freeze_encoder: bool = Field(
        True, description="Leave the layers that turn sound into features as they were pretrained."
    )
    lora: LoraSettings | None = Field(
        None,
        description="Train low-rank adapters on frozen pretrained weights, and the head for an `alphabet`; "
        "null: train all weights that `freeze_encoder` leaves.",
    )
    language: str | None = Field(
        None, description="seq2seq: what the model is told to write, such as german."
    )
    most_tokens: int = Field(128, ge=1, description="seq2seq: longest transcript that is written.")


class SoundSettings(Section):
    """Which recordings and transcripts."""

    source: str = Field(
        "spoken",
        description="`spoken`: German sentences spoken by espeak-ng; a folder of audio files with a .txt "
        "next to each; Common Voice's own folder "
        "(train.tsv and clips); parquet, an object store's URL, hf:NAME@CONFIG, or prepared data.",
    )
    glob: str = Field("**/*", description="Which files of a folder.")
    audio: str = Field("audio", description="Column of the sound.")
    text: str = Field("text", description="Column of the transcript; `sentence` in Common Voice.")
    rate: int = Field(
        16_000,
        ge=4_000,
        le=48_000,
        description="Samples per second that the model hears; sounds are brought to it.",
    )
    shortest: float = Field(0.2, ge=0, description="Seconds; shorter ones are left out.")
    longest: float = Field(20.0, gt=0, description="Seconds; longer ones are left out.")
    utterances: int = Field(1500, ge=20, description="spoken: how many.")
    voices: tuple[str, ...] = Field(
        ("de+m1", "de+f1", "de+m3", "de+f2", "de+m5", "de+f4"),
        min_length=1,
        description="spoken: espeak-ng's voices, with variants.",
    )
    speeds: tuple[int, ...] = Field((110, 130, 150), min_length=1, description="spoken: words per minute.")
    validation_share: float = Field(
        0.08, gt=0, lt=0.5, description="Share of the recordings that form the validation split."
    )
    test_share: float = Field(
        0.08, gt=0, lt=0.5, description="Share of the recordings that form the test split."
    )
    split_seed: int = Field(
        0, ge=0, description="Changes which utterance goes where, independent of the run's seed."
    )
    integrity: Literal["refuse", "quarantine"] = Field(
        "refuse", description="What happens to sounds and rows that cannot be used."
    )
    quarantine_limit: float = Field(
        0.01, ge=0, le=1, description="The largest share of them that `quarantine` leaves out."
    )
    disk_gib: float = Field(64, gt=0, description="Disk for blocks of an object store per machine.")
    store: str | None = Field(
        None,
        description="Object store's URL or shared folder: prepared data that it holds is read from there, "
        "other data is copied to it; null: each machine prepares its own.",
    )


class SpeechSettings(WorkloadSettings):
    """Speech to text."""

    metric_names: ClassVar[tuple[str, ...]] = ("wer", "cer")
    name: Literal["speech"]
    model: SpeechModelSettings = SpeechModelSettings()
    data: SoundSettings = SoundSettings()

    def reads_weights(self) -> bool:
        return self.model.pretrained is not None

    def raw_data(self) -> Iterator[RawData]:
        data = self.data
        if data.source != "spoken":
            yield RawData(data.source, data.glob, (data.audio, data.text), strict=data.integrity == "refuse")

    def check_recipe(self, recipe: RecipeView) -> Iterator[BrokenRule]:  # noqa: ARG002 - for subclasses
        model, data = self.model, self.data
        if model.kind == "seq2seq" and model.pretrained is None:
            what = "there is no small model of this kind, only pretrained ones"
            yield (
                "workload.model.kind workload.model.pretrained",
                what,
                "workload.model.pretrained=openai/whisper-small, or kind=ctc",
            )
        if model.pretrained is None and model.lora is not None:
            what = "does nothing without a pretrained model"
            yield "workload.model.lora workload.model.pretrained", what, "leave it out"
        if model.pretrained is None and model.alphabet is None:
            yield (
                "workload.model.alphabet workload.model.pretrained",
                "a model without pretraining needs letters",
                "leave it out: German's",
            )
        if model.pretrained is None and model.width % (2 * model.heads):
            what = f"{model.width} cannot be split into {model.heads} heads of even width"
            yield "workload.model.width workload.model.heads", what, f"a multiple of {2 * model.heads}"
        if model.kernel % 2 == 0:
            yield "workload.model.kernel", f"{model.kernel} has no middle", "an odd number"
        if data.shortest >= data.longest:
            yield (
                "workload.data.shortest workload.data.longest",
                f"nothing is longer than {data.shortest} s and shorter than {data.longest} s",
                "",
            )

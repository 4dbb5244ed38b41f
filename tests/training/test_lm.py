"""The language model: text, tokens, the bigram baseline, and causality."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from trainfleet.errors import InputError
from trainfleet.training.workloads import Split
from trainfleet.training.workloads.lm.bigram import SMOOTHING, nats_per_byte, pair_counts
from trainfleet.training.workloads.lm.gpt import Gpt, rotary_angles, rotate
from trainfleet.training.workloads.lm.settings import GptSettings, LmSettings, TextSettings
from trainfleet.training.workloads.lm.text import SPLITS, TokenFiles, split_of, token_files
from trainfleet.training.workloads.lm.workload import LanguageModel

SHAPE = GptSettings(layers=2, width=16, heads=2, context=12)
CONTEXT = SHAPE.context


def settings(folder: Path, **more: object) -> TextSettings:
    return TextSettings.model_validate(
        {"source": str(folder), "glob": "**/*.txt", "validation_share": 0.15, "test_share": 0.15, **more}
    )


def whole(files: TokenFiles, split: Split) -> list[int]:
    """All tokens of a split. Each piece after the first starts with the last token of the one before it."""
    pieces = list(files.tokens(split))
    assert all(before[-1] == after[0] for before, after in itertools.pairwise(pieces))
    return [int(pieces[0][0]), *(token for piece in pieces for token in piece[1:].tolist())]


def text_of(files: TokenFiles, split: Split) -> bytes:
    return b"".join(files.spelling[token] for token in whole(files, split))


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_a_later_token_never_changes_an_earlier_prediction(mlp: str) -> None:
    torch.manual_seed(0)
    model = Gpt(SHAPE.model_copy(update={"mlp": mlp}), 50)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(50, (2, 12))
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_rotary_positions_depend_on_distance_alone() -> None:
    angles = rotary_angles(20, 8, torch.device("cpu"))
    q, k = torch.randn(2, 1, 1, 1, 8)
    turned = [
        [rotate(each.expand(1, 1, 20, 8), angles.cos(), angles.sin())[0, 0, place] for place in range(20)]
        for each in (q, k)
    ]
    products = [
        [float(turned[0][place + gap] @ turned[1][place]) for place in range(10)] for gap in (0, 3, 9)
    ]
    for same_distance in products:
        assert max(same_distance) - min(same_distance) < 1e-4
    assert abs(products[0][0] - products[1][0]) > 1e-4


def test_the_head_shares_the_weights_of_the_embedding() -> None:
    model = Gpt(SHAPE, 50)
    assert sum(each.shape == (50, 16) for each in model.parameters()) == 1


def test_blocks_start_as_the_identity() -> None:
    model = Gpt(SHAPE, 50)
    tokens = torch.randint(50, (2, 12))
    embedded = model.norm(model.embedding(tokens))
    assert torch.equal(model(tokens), embedded @ model.embedding.weight.T)


def test_the_bigram_model_equals_a_count_by_hand() -> None:
    train, validation = b"abracadabra\0abrab", b"abcab"
    total = 0.0
    followers = [second for _, second in itertools.pairwise(train)]
    for first, second in itertools.pairwise(validation):
        seen = [b for a, b in itertools.pairwise(train) if a == first]
        single = (followers.count(second) + 1) / (len(followers) + 256)
        total -= math.log((seen.count(second) + SMOOTHING * single) / (len(seen) + SMOOTHING))
    assert nats_per_byte(pair_counts([train]), pair_counts([validation])) == pytest.approx(
        total / 4, rel=1e-12
    )


def test_the_baseline_and_the_model_are_evaluated_on_the_same_bytes(text_folder: Path, cache: Path) -> None:
    workload = LanguageModel(LmSettings(name="lm", model=SHAPE, data=settings(text_folder)), cache)
    indices = [0, 5, 6]
    pairs = np.zeros((256, 256), dtype=np.int64)
    batch = workload.batch("validation", indices)
    np.add.at(pairs, (batch["inputs"].flatten().numpy(), batch["targets"].flatten().numpy()), 1)
    train = pair_counts([text_of(workload.files, "train")])
    assert workload.baseline(indices) == {"bigram_nats_per_byte": nats_per_byte(train, pairs)}


def test_bpe_loses_no_byte_and_has_the_baseline_of_bytes(text_folder: Path, cache: Path) -> None:
    by_bytes = token_files(settings(text_folder), cache, CONTEXT)
    by_bpe = LanguageModel(
        LmSettings(name="lm", model=SHAPE, data=settings(text_folder, tokens="bpe", vocabulary=300)), cache
    )
    for split in SPLITS:
        spelt, text = text_of(by_bpe.files, split), text_of(by_bytes, split)
        shorter = min(len(spelt), len(text))  # the rest at the end is shorter than a sample
        assert spelt[:shorter] == text[:shorter]
        assert abs(len(spelt) - len(text)) < CONTEXT * 20
    everything = range(by_bpe.size("validation"))
    validation = text_of(by_bpe.files, "validation")
    expected = nats_per_byte(pair_counts([text_of(by_bytes, "train")]), pair_counts([validation]))
    assert len(whole(by_bpe.files, "train")) < 0.5 * len(whole(by_bytes, "train"))
    assert by_bpe.baseline(list(everything))["bigram_nats_per_byte"] == pytest.approx(expected, rel=0.02)


def test_losses_are_also_reported_per_byte(text_folder: Path, cache: Path) -> None:
    workload = LanguageModel(
        LmSettings(name="lm", model=SHAPE, data=settings(text_folder, tokens="bpe", vocabulary=300)), cache
    )
    batch = workload.batch("train", [0, 1])
    outcome = workload.forward_loss(workload.build_model(), batch)
    total, written = outcome.metric_sums["nats_per_byte"]
    assert float(total) == float(outcome.loss)
    assert outcome.num_targets == 24 == workload.num_targets("train", [0, 1])
    assert (
        int(written)
        == sum(len(workload.files.spelling[token]) for token in batch["targets"].flatten().tolist())
        > 24
    )


def test_a_document_keeps_its_split_when_others_are_added_or_removed(text_folder: Path) -> None:
    chosen = {f"file{number}": split_of(f"file{number}", settings(text_folder)) for number in range(2000)}
    shares = {split: sum(each == split for each in chosen.values()) / 2000 for split in SPLITS}
    assert shares["validation"] == pytest.approx(0.15, abs=0.03)
    assert shares["test"] == pytest.approx(0.15, abs=0.03)
    assert any(split_of(name, settings(text_folder, split_seed=1)) != split for name, split in chosen.items())


def test_splits_hold_each_complete_file_once(text_folder: Path, cache: Path) -> None:
    files = token_files(
        settings(text_folder, block_rows=100), cache, 1
    )  # with samples of one token, there is no rest at the end
    documents = [each for split in SPLITS for each in text_of(files, split).split(b"\0")[:-1]]
    assert sorted(documents) == sorted(path.read_bytes() for path in text_folder.rglob("*.txt"))


def test_samples_equal_slices_of_the_whole_text(text_folder: Path, cache: Path) -> None:
    """Blocks and their size change nothing: sample i is tokens i·T to i·T + T + 1 of the documents in their
    order.
    """
    names = sorted(path.relative_to(text_folder).as_posix() for path in text_folder.rglob("*.txt"))
    for split in SPLITS:
        documents = [
            (text_folder / name).read_bytes() + b"\0"
            for name in names
            if split_of(name, settings(text_folder)) == split
        ]
        text = b"".join(documents)
        for rows in (7, 1000):
            blocks = token_files(settings(text_folder, block_rows=rows), cache, CONTEXT).blocks[split]
            assert blocks.size == (len(text) - 1) // CONTEXT
            got = blocks.rows(range(blocks.size))["tokens"]
            assert [bytes(row) for row in got] == [
                text[start * CONTEXT : start * CONTEXT + CONTEXT + 1] for start in range(blocks.size)
            ]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    rows = [f"row number {number} says hello" for number in range(60)]
    parquet.write_table(pa.table({"body": rows, "other": list(range(60))}), tmp_path / "data.parquet")
    files = token_files(settings(tmp_path / "data.parquet", column="body"), tmp_path / "cache", 1)
    documents = [each.decode() for split in SPLITS for each in text_of(files, split).split(b"\0")[:-1]]
    assert sorted(documents) == sorted(rows)
    with pytest.raises(InputError, match=r"data\.parquet: has no column text, only body, other"):
        token_files(settings(tmp_path / "data.parquet", column="text"), tmp_path / "cache", 1)


def test_the_cache_is_built_once_and_again_when_the_text_changes(tmp_path: Path, text_folder: Path) -> None:
    source, cache = tmp_path / "text", tmp_path / "cache"
    for path in text_folder.rglob("*.txt"):
        target = source / path.relative_to(text_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    first = token_files(settings(source), cache, CONTEXT)
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")}
    assert token_files(settings(source), cache, CONTEXT).digest == first.digest
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.arrow")} == made
    for path in source.rglob("*.txt"):
        path.write_text("other words altogether")
    assert token_files(settings(source), cache, CONTEXT).digest != first.digest


def test_a_failed_build_leaves_no_data(
    tmp_path: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("trainfleet.files.os.fsync", fail)
        with pytest.raises(InputError, match="No space left on device"):
            token_files(settings(text_folder), tmp_path, CONTEXT)
    assert list(tmp_path.rglob("*.arrow")) == list(tmp_path.rglob("manifest.json")) == []
    assert token_files(settings(text_folder), tmp_path, CONTEXT).vocabulary == 256


NO_TEXT: list[tuple[Callable[[Path], dict[str, object]], str]] = [
    (lambda folder: {"source": str(folder / "missing")}, "does not exist"),
    (lambda folder: {"glob": "*.md"}, r"no file matches \*\.md"),
]


@pytest.mark.parametrize(("change", "message"), NO_TEXT)
def test_missing_text_is_one_clear_error(
    text_folder: Path, cache: Path, change: Callable[[Path], dict[str, object]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        token_files(settings(text_folder).model_copy(update=change(text_folder)), cache, CONTEXT)


def test_too_few_files_or_too_little_text_is_one_clear_error(
    tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    (tmp_path / "only.txt").write_text("a single file")
    with pytest.raises(InputError, match="less than one sample"):
        token_files(settings(tmp_path), cache, CONTEXT)
    with pytest.raises(InputError, match="less than one sample"):
        LanguageModel(
            LmSettings(
                name="lm", model=SHAPE.model_copy(update={"context": 100_000}), data=settings(text_folder)
            ),
            cache,
        )

"""Makes what docs/fine-tuning.md trains on, without a download: a tiny Whisper and recordings.

    python examples/tiny_speech.py speech    # writes speech/model and speech/recordings

The model is a Whisper of 0.2 million random weights that hears two seconds and writes bytes. The recordings
are German numbers, spoken by espeak-ng; each has its transcript in a .txt of the same name.
"""

from __future__ import annotations

import argparse
import itertools
import wave
from pathlib import Path

NUMBERS = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
VOICES = ("de+m1", "de+f1", "de+m3", "de+f2", "de+m5", "de+f4")
SPEEDS = (110, 130, 150, 170)


def write_recordings(folder: Path, speeds: tuple[int, ...] = SPEEDS) -> None:
    """Each number in each voice at each speed."""
    from trainfleet.training.workloads.speech.synthetic_speech import speak

    folder.mkdir(parents=True, exist_ok=True)
    for word, voice, speed in itertools.product(NUMBERS, VOICES, speeds):
        sound, rate = speak(word, voice, speed)
        path = folder / f"{word}-{voice.partition('+')[2]}-{speed}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(sound.astype("<i2").tobytes())
        path.with_suffix(".txt").write_text(word, encoding="utf-8")


def write_model(folder: Path) -> None:
    """A Whisper with random weights, its tokenizer of bytes, and its feature extractor."""
    import torch
    import transformers

    from trainfleet.training.workloads.lm.hf_tokenizer import byte_of

    special = ("startoftranscript", "en", "de", "translate", "transcribe", "notimestamps")
    tokenizer = transformers.WhisperTokenizer(vocab=byte_of() | {"<|endoftext|>": 256}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{each}|>" for each in special]})
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=40, chunk_length=2).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=40,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=100,
        max_target_positions=32,
        dropout=0.0,
        pad_token_id=256,
        bos_token_id=256,
        eos_token_id=256,
        decoder_start_token_id=257,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a tiny speech model and recordings.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    write_recordings(folder / "recordings")
    write_model(folder / "model")


if __name__ == "__main__":
    main()

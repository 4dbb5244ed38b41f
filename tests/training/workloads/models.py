"""Tiny models in the format of transformers: random weights, real tokenizers, no download."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch


def causal(folder: Path) -> Path:
    """A Llama with two layers and a byte-level BPE tokenizer trained on a few words."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the gradient sums the loss of the tensor step by step"] * 5, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(fast) + 5,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


MARKED = (
    "{% for message in messages %}<s>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}</s>{% endgeneration %}{% else %}{{ message.content }}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""A chat template that marks the answers."""
PLAIN = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""The same without marks."""


def chat(folder: Path, template: str | None = MARKED) -> Path:
    """The model of `causal` with a chat template."""
    import transformers

    causal(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def wav2vec2(folder: Path, letters: str = "abcdefghijklmnopqrstuvwxyzäöüß", family: str = "Wav2Vec2") -> Path:
    """A wav2vec2 with one layer, its feature extractor and its letters; with `family` "Hubert", a HuBERT."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(
        json.dumps({each: number for number, each in enumerate(["<pad>", "<unk>", "|", *letters])})
    )
    transformers.Wav2Vec2CTCTokenizer(str(vocabulary), bos_token=None, eos_token=None).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(
        sampling_rate=16_000, return_attention_mask=True, do_normalize=True
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(letters) + 3,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        conv_dim=(32, 32, 32),
        conv_stride=(5, 8, 8),
        conv_kernel=(10, 8, 8),
        num_feat_extract_layers=3,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        pad_token_id=0,
    )
    getattr(transformers, f"{family}ForCTC")(config).save_pretrained(folder)
    return folder


def whisper(folder: Path) -> Path:
    """A Whisper with one encoder layer and one decoder layer, and byte tokens."""
    import transformers

    from trainfleet.training.workloads.lm.hf_tokenizer import byte_of

    ends = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|zh|>",
        "<|de|>",
        "<|translate|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    ]
    tokenizer = transformers.WhisperTokenizer(vocab=byte_of() | {ends[0]: 256}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ends[1:]})
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=4).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        d_model=32,
        max_source_positions=200,
        max_target_positions=64,
        pad_token_id=256,
        bos_token_id=256,
        eos_token_id=256,
        decoder_start_token_id=257,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    return folder


def vit(folder: Path, labels: Sequence[str] = ("cat", "dog"), size: int = 16) -> Path:
    """A ViT with two layers and its image processor, for images of this side with three channels."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=size,
        patch_size=4,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        id2label=dict(enumerate(labels)),
        label2id={each: number for number, each in enumerate(labels)},
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    return _with_processor(folder, "ViTImageProcessor", {"height": size, "width": size})


def resnet(folder: Path) -> Path:
    """A ResNet with batch norm and its image processor."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    return _with_processor(folder, "ConvNextImageProcessor", {"shortest_edge": 224})


def halve(folder: Path) -> None:
    """Store the weights of a model in fp16, as many published models are."""
    from safetensors.torch import load_file, save_file

    weights = {name: each.half() for name, each in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))


def _with_processor(folder: Path, kind: str, size: dict[str, int]) -> Path:
    processor = {
        "image_processor_type": kind,
        "size": size,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder

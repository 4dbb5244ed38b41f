"""Makes what docs/fine-tuning.md trains on, without a download: a tiny chat model and conversations.

    python examples/tiny_chat.py chat    # writes chat/model and chat/conversations.jsonl

The model is a Llama of 0.2 million random weights. Its tokenizer is trained on the conversations and has a
chat template that marks the answers. The conversations ask for the opposites of words.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

OPPOSITES = {
    "hot": "cold",
    "high": "low",
    "fast": "slow",
    "light": "dark",
    "open": "closed",
    "early": "late",
    "long": "short",
    "full": "empty",
    "hard": "soft",
    "near": "far",
    "wet": "dry",
    "loud": "quiet",
}
QUESTIONS = ("What is the opposite of {}?", "Tell me the opposite of {}.", "{}: its opposite?")
TEMPLATE = """\
{%- for message in messages -%}
<|start|>{{ message.role }}
{% if message.role == "assistant" -%}
{% generation %}{{ message.content }}<|end|>{% endgeneration %}
{%- else -%}
{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{% endif -%}
"""


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Conversations of one to three questions, each with its answer."""
    rng = random.Random(seed)
    pairs = [*OPPOSITES.items(), *((second, first) for first, second in OPPOSITES.items())]
    found = []
    for _ in range(count):
        messages = []
        for word, opposite in rng.sample(pairs, rng.randint(1, 3)):
            messages.append({"role": "user", "content": rng.choice(QUESTIONS).format(word)})
            messages.append({"role": "assistant", "content": f"The opposite of {word} is {opposite}."})
        found.append({"messages": messages})
    return found


def write_model(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A Llama with random weights, and its tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [message["content"] for row in rows for message in row["messages"]]
    tokenizer.train_from_iterator(texts, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>", pad_token="<|end|>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(fast),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=fast.bos_token_id,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a tiny chat model and conversations.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    rows = conversations(600)
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "conversations.jsonl").write_text(lines, encoding="utf-8")
    write_model(folder / "model", rows)


if __name__ == "__main__":
    main()

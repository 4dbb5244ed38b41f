"""Makes the image classifier that docs/fine-tuning.md trains, without a download.

    python examples/tiny_image.py image    # writes image/model

The model is a ViT of 0.1 million random weights for images of 16 by 16 pixels, with its image processor.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def write_model(folder: Path) -> None:
    """A ViT with random weights, and its image processor."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=16,
        patch_size=4,
        num_channels=3,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": 16, "width": 16},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a tiny image classifier.")
    parser.add_argument("folder", type=Path)
    write_model(parser.parse_args().folder / "model")


if __name__ == "__main__":
    main()

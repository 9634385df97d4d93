"""Make a tiny model with random weights and another model's tokenizer: python tools/tiny_model.py MODEL-FOLDER FOLDER

For servers that are too slow with a real one. Runs with a Python that has numpy and safetensors.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KEY_VALUE_HEADS, LAYERS, INNER = 64, 2, 1, 2, 128  # vLLM takes heads of 32 on a CPU, not smaller ones
SIZES = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INNER,
    "head_dim": HIDDEN // HEADS,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def main(source: Path, folder: Path) -> None:
    """Write the folder. The tokenizer is copied last."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text("utf-8")) | SIZES
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
        return (random.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    inner_keys = HIDDEN // HEADS * KEY_VALUE_HEADS
    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], HIDDEN), "model.norm.weight": np.ones(HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = np.ones(HIDDEN)
        for projection, rows in (("q", HIDDEN), ("k", inner_keys), ("v", inner_keys), ("o", HIDDEN)):
            weights[f"{name}.self_attn.{projection}_proj.weight"] = matrix(rows, HIDDEN)
        for projection, rows, columns in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            weights[f"{name}.mlp.{projection}_proj.weight"] = matrix(rows, columns)
    save_file({name: weight.astype(np.float32) for name, weight in weights.items()}, folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")  # mlx-lm lists no model without it
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors", "tokenizer.json"):
            shutil.copy(file, folder)
    shutil.copy(source / "tokenizer.json", folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

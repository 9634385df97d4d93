"""Convert a GGUF file to a folder for transformers and vLLM: 16-bit safetensors, tokenizer and chat template.

Run with a Python that has transformers: python tools/unpack.py MODEL.gguf TEMPLATE FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main(model: Path, template: Path, folder: Path) -> None:
    """Write the folder."""
    source = {"pretrained_model_name_or_path": model.parent, "gguf_file": model.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers refuses to save a model that was loaded from a GGUF, so the weights are copied to a new one.
    model_copy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**source))
    model_copy.load_state_dict(loaded.state_dict())
    model_copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.chat_template = template.read_text("utf-8")
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

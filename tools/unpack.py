"""A GGUF as a folder that transformers and vLLM read: 16-bit safetensors, the tokenizer and a chat template.

Run by the Python of one of them: python tools/unpack.py MODEL.gguf TEMPLATE FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main(model: Path, template: Path, folder: Path) -> None:
    """Write the folder."""
    source = {"pretrained_model_name_or_path": model.parent, "gguf_file": model.name}
    packed = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # What was read from a GGUF cannot be saved, though its weights are plain numbers by now: they move to a model that
    # was never packed.
    plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**source))
    plain.load_state_dict(packed.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.chat_template = template.read_text("utf-8")
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

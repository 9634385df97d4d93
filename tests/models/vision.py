"""Tiny vision projector for the tiny language model: a vision transformer with random weights.

An image becomes 16 vectors that the language model reads like tokens. Its output depends on the image but does not
describe it.
"""

from tests.models import tiny
from tests.models.gguf_writer import Array, Gguf, Kind, Value
from tests.models.weights import Weights

SEED = 18390819
SIDE, PATCH = 32, 8  # pixels
PATCHES = (SIDE // PATCH) ** 2
WIDTH = 32
LAYERS = 2  # the last one is unused: this type of projector reads the output of the one before
HEADS = 4
HIDDEN = 64  # of the feed-forward part: twice the width


def projector() -> Gguf:
    """Return the projector file of a vision model (`--mmproj`)."""
    metadata: dict[str, Value] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": "tiny-vision",
        "general.file_type": 0,  # F32
        "clip.has_vision_encoder": True,
        "clip.has_llava_projector": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
        "clip.vision.image_size": SIDE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": HIDDEN,
        "clip.vision.projection_dim": tiny.WIDTH,
        "clip.vision.block_count": LAYERS,
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": Array(Kind.FLOAT32, [0.5, 0.5, 0.5]),
        "clip.vision.image_std": Array(Kind.FLOAT32, [0.5, 0.5, 0.5]),
    }
    weights = Weights(SEED)
    weights.add_random("v.patch_embd.weight", (PATCH, PATCH, 3, WIDTH), 0.1)
    weights.add_rows("v.position_embd.weight", weights.rows(PATCHES, WIDTH, 0.5))
    weights.add_norm("v.pre_ln", WIDTH)
    for layer in range(LAYERS):
        _add_layer(weights, f"v.blk.{layer}")
    weights.add_linear("mm.0", WIDTH, tiny.WIDTH)
    weights.add_linear("mm.2", tiny.WIDTH, tiny.WIDTH)
    return Gguf(metadata, weights.tensors)


def _add_layer(weights: Weights, at: str) -> None:
    weights.add_norm(f"{at}.ln1", WIDTH)
    for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
        weights.add_linear(f"{at}.{part}", WIDTH, WIDTH)
    weights.add_norm(f"{at}.ln2", WIDTH)
    weights.add_linear(f"{at}.ffn_up", WIDTH, HIDDEN)
    weights.add_linear(f"{at}.ffn_down", HIDDEN, WIDTH)

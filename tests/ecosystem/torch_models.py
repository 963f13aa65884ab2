"""Compares models of transformers and timm with torch: python tests/ecosystem/torch_models.py [NAME ...]

They run by `gt.from_module`. `make ecosystem LIB=transformers` or `LIB=timm` calls it, with the package installed.
Weights are random and the models are small: two layers of 32 features. For each one it compares the values, the
gradients of all parameters and the new buffers, in evaluation and in training, with dropout off. It is no test.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import page
import torch

import gtrace as gt

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
SHORT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
PAIR = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip
FEW = {**SMALL, "num_key_value_heads": 2}
PATCHES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
IDS = torch.arange(20).reshape(2, 10) * 7 % 90 + 3
MASK = torch.ones(2, 10, dtype=torch.long)
MASK[1, 7:] = 0
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
TEXT = {"input_ids": IDS, "attention_mask": MASK}
CAUSAL = {**TEXT, "labels": IDS, "use_cache": False}
UNMASKED = {"input_ids": IDS, "labels": IDS, "use_cache": False}

TRANSFORMERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "BertForMaskedLM": ("BertConfig", SMALL, {**TEXT, "labels": IDS}),
    "RobertaModel": ("RobertaConfig", SMALL, TEXT),
    "DistilBertModel": ("DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, TEXT),
    "AlbertModel": ("AlbertConfig", {**SMALL, "embedding_size": 16}, TEXT),
    "ElectraModel": ("ElectraConfig", {**SMALL, "embedding_size": 16}, TEXT),
    "DebertaV2Model": ("DebertaV2Config", {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, TEXT),
    "MPNetModel": ("MPNetConfig", SMALL, TEXT),
    "ModernBertModel": ("ModernBertConfig", {**SMALL, "local_attention": 8}, TEXT),
    "ConvBertModel": ("ConvBertConfig", {**SMALL, "embedding_size": 32}, TEXT),
    "FNetModel": ("FNetConfig", SMALL, {"input_ids": IDS}),
    "LongformerModel": ("LongformerConfig", {**SMALL, "attention_window": 4}, TEXT),
    "NystromformerModel": ("NystromformerConfig", {**SMALL, "num_landmarks": 2, "segment_means_seq_len": 10}, {
        "input_ids": IDS, "attention_mask": MASK[:, None, None].float()}),
    "RoFormerModel": ("RoFormerConfig", SMALL, TEXT),
    "XLNetModel": ("XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 99}, TEXT),
    "GPT2LMHeadModel": ("GPT2Config", SHORT, CAUSAL),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL, CAUSAL),
    "GPTJForCausalLM": ("GPTJConfig", {**SHORT, "rotary_dim": 4}, CAUSAL),
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}, CAUSAL),
    "FalconForCausalLM": ("FalconConfig", SMALL, CAUSAL),
    "LlamaForCausalLM": ("LlamaConfig", FEW, CAUSAL),
    "MistralForCausalLM": ("MistralConfig", {**FEW, "sliding_window": 4}, CAUSAL),
    "MixtralForCausalLM": ("MixtralConfig", {**FEW, "num_local_experts": 3, "num_experts_per_tok": 2}, CAUSAL),
    "Qwen2ForCausalLM": ("Qwen2Config", FEW, CAUSAL),
    "Qwen3ForCausalLM": ("Qwen3Config", {**FEW, "head_dim": 8}, CAUSAL),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {**FEW, "head_dim": 8, "sliding_window": 4}, CAUSAL),
    "Phi3ForCausalLM": ("Phi3Config", FEW, CAUSAL),
    "OlmoForCausalLM": ("OlmoConfig", SMALL, CAUSAL),
    "MambaForCausalLM": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}, UNMASKED),
    "RwkvForCausalLM": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99}, UNMASKED),
    "MT5ForConditionalGeneration": ("MT5Config", {
        "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
        "decoder_start_token_id": 0}, UNMASKED),
    "BartForConditionalGeneration": ("BartConfig", PAIR, UNMASKED),
    "WhisperForConditionalGeneration": ("WhisperConfig", {
        **PAIR, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64}, {
        "input_features": torch.linspace(-1, 1, 320).reshape(2, 8, 20), "labels": IDS, "use_cache": False}),
    "ViTForImageClassification": ("ViTConfig", PATCHES, {"pixel_values": IMAGES, "labels": torch.tensor([0, 1])}),
    "BeitModel": ("BeitConfig", PATCHES, {"pixel_values": IMAGES}),
    "Dinov2Model": ("Dinov2Config", PATCHES, {"pixel_values": IMAGES}),
    "SwinModel": ("SwinConfig", {
        "image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}, {
        "pixel_values": IMAGES}),
    "ResNetModel": ("ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, {
        "pixel_values": IMAGES}),
}  # fmt: skip
"""By class: its configuration class, arguments of that, and arguments of the model."""

TIMM = {
    "resnet18": {}, "mobilenetv3_small_050": {}, "efficientnet_b0": {}, "convnext_atto": {}, "regnetx_002": {},
    "mnasnet_small": {}, "ghostnet_050": {},
    "vit_tiny_patch16_224": {"img_size": 64}, "mixer_s32_224": {"img_size": 64},
    "swin_tiny_patch4_window7_224": {
        "img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4),
        "drop_path_rate": 0.0},
}  # fmt: skip


def of_transformers(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    import transformers

    config, arguments, inputs = TRANSFORMERS[name]
    made = getattr(transformers, config)(**arguments)
    for key, value in list(vars(made).items()):
        if "drop" in key and isinstance(value, float):
            setattr(made, key, 0.0)
    return getattr(transformers, name)(made), (), inputs


def of_timm(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=5, drop_rate=0.0, **TIMM[name])
    for part in model.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
    # batch norms over few elements amplify the rounding of float32 beyond any bound
    return model.double(), (torch.linspace(-1, 1, 2 * 3 * 64 * 64).double().reshape(2, 3, 64, 64),), {}


def tensors(out: Any) -> list[Any]:
    """Return the floating tensors or Arrays of a result, in order."""
    if isinstance(out, (torch.Tensor, gt.Array)):
        return [out] if "float" in str(out.dtype) else []
    if isinstance(out, dict):
        out = list(out.values())
    return [x for each in out for x in tensors(each)] if isinstance(out, (list, tuple)) else []


def differing(found: Any, expected: torch.Tensor, least: float, bound: float) -> bool:
    x, y = np.asarray(found, dtype=np.float64), expected.detach().double().numpy()
    return x.shape != y.shape or not np.abs(x - y).max(initial=0) <= bound * max(least, np.abs(y).max(initial=0))


def compared(model: torch.nn.Module, args: tuple[Any, ...], inputs: dict[str, Any], train: bool) -> str:
    """Return what differs from torch, or ""."""
    model.train(train)
    params, apply = gt.from_module(model)
    given = gt.tree.map(gt.array, args)
    named = {k: gt.array(x) if isinstance(x, torch.Tensor) else x for k, x in inputs.items()}

    def loss(params: dict[str, gt.Array]) -> Any:
        out, state = apply(params, *given, state=apply.state, train=train, **named)
        outs = tensors(out)
        return sum((x * gt.sin(gt.arange(x.size, dtype=x.dtype)).reshape(x.shape)).sum() for x in outs), (outs, state)

    (_, (outs, state)), grads = gt.value_and_grad(loss, has_aux=True)(params)
    right = tensors(model(*args, **inputs))
    sum((x * torch.sin(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)).sum() for x in right).backward()  # type: ignore[union-attr]
    if len(outs) != len(right) or any(differing(x, y, 1e-3, 2e-4) for x, y in zip(outs, right, strict=True)):
        return "values"
    slopes = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    largest = max(float(g.abs().max()) for g in slopes.values())
    wrong = [k for k, g in slopes.items() if differing(grads[k], g, 1e-2 * largest, 2e-3)]
    if wrong:
        return f"gradient of {wrong[0]}"
    return "buffers" if any(differing(state[k], x, 1e-3, 2e-4) for k, x in model.named_buffers()) else ""


def declare_operators() -> None:
    """Declare the operators that torchvision describes when it is imported, and that no model here calls.

    The package index has only its build for CUDA, whose own operators do not load beside torch for CPUs.
    """
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def main(names: list[str]) -> None:
    if torch.version.cuda is None:
        declare_operators()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=page.HERE, capture_output=True, text=True)
    for package, table, make in (("transformers", TRANSFORMERS, of_transformers), ("timm", TIMM, of_timm)):
        chosen = [name for name in table if not names or name in names or package in names]
        others = []
        for name in chosen:
            begin = time.perf_counter()
            said = ""
            for train in (False, True):
                torch.manual_seed(0)
                try:
                    said = compared(*make(name), train)
                except Exception as error:  # noqa: BLE001 - the page says what was raised
                    said = f"{type(error).__name__}: {str(error).splitlines()[0].partition(' (at ')[0][:150]}"
                if said:
                    others.append(f"{name}, {'training' if train else 'evaluation'}: {said}")
                    break
            print(f"{name:32} {time.perf_counter() - begin:5.0f} s  {said or 'agrees'}", flush=True)
        if len(chosen) == len(table):
            row = {
                "version": importlib.metadata.version(package), "agree": len(chosen) - len(others), "of": len(chosen),
                "names": ", ".join(chosen), "others": "; ".join(others),
                "commit": git.stdout.strip(), "date": str(datetime.date.today()),
            }  # fmt: skip
            page.remember("models", package, row)
    page.write()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])

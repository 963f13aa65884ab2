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
from timm_models import TIMM
from transformers_models import TRANSFORMERS

import gtrace as gt


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Set all rates of dropout to 0: torch and gtrace would draw others."""
    for part in model.modules():
        configs = [x for x in vars(part).values() if type(x).__name__.endswith("Config")]
        for each in (part, *configs):
            for key, value in list(vars(each).items()):
                if ("drop" in key or "jitter" in key) and isinstance(value, float):
                    setattr(each, key, 0.0)
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return model


def of_transformers(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    import transformers

    config, arguments, inputs = TRANSFORMERS[name]
    made = getattr(transformers, config)(**arguments)
    return without_dropout(getattr(transformers, name)(made)), (), inputs


def of_timm(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=5, drop_rate=0.0, **TIMM[name])
    # batch norms over few elements amplify the rounding of float32 beyond any bound
    return without_dropout(model).double(), (torch.linspace(-1, 1, 2 * 3 * 64 * 64).double().reshape(2, 3, 64, 64),), {}


def tensors(out: Any) -> list[Any]:
    """Return the floating tensors or Arrays of a result, in order."""
    if isinstance(out, (torch.Tensor, gt.Array)):
        return [out] if "float" in str(out.dtype) else []
    if isinstance(out, dict):
        out = list(out.values())
    return [x for each in out for x in tensors(each)] if isinstance(out, (list, tuple)) else []


def differing(found: Any, expected: torch.Tensor, least: float, bound: float) -> bool:
    x, y = found.to_torch().double().numpy(), expected.detach().double().numpy()
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

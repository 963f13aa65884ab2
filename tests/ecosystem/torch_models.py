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
from transformers_models import IN_FLOAT64, PRECISE, SAMPLING, TRANSFORMERS, generating

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


def of_transformers(name: str, precise: bool = False) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a model and its arguments; precise: in float64."""
    import transformers

    config, arguments, inputs = TRANSFORMERS[name]
    made = getattr(transformers, config)(**arguments)
    model = without_dropout(getattr(transformers, name)(made))
    if not precise and name not in IN_FLOAT64:
        return model, (), inputs
    return model.double(), (), {k: x.double() if of_floats(x) else x for k, x in inputs.items()}


def of_floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


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


def weighed(outs: list[Any], ops: Any) -> Any:
    """Return a number that depends on all results; `ops` is torch or gtrace."""
    places = [ops.arange(len(x.reshape(-1)), dtype=x.dtype) for x in outs]
    return sum((x.reshape(-1) * ops.sin(place)).sum() for x, place in zip(outs, places, strict=True))


def on_gtrace(
    model: torch.nn.Module, args: tuple[Any, ...], inputs: dict[str, Any], train: bool
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return results, gradients and new buffers."""
    params, apply = gt.from_module(model)
    given = gt.tree.map(gt.array, args)
    named = {k: gt.array(x) if isinstance(x, torch.Tensor) else x for k, x in inputs.items()}

    def loss(params: dict[str, gt.Array]) -> Any:
        out, state = apply(params, *given, state=apply.state, train=train, **named)
        outs = tensors(out)
        return weighed(outs, gt), (outs, state)

    (_, (outs, state)), grads = gt.value_and_grad(loss, has_aux=True)(params)
    return outs, grads, state


def on_torch(
    model: torch.nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Return results and gradients; the model has its new buffers."""
    outs = tensors(model(*args, **inputs))
    weighed(outs, torch).backward()
    return outs, {k: p.grad for k, p in model.named_parameters() if p.grad is not None}


def compared(model: torch.nn.Module, args: tuple[Any, ...], inputs: dict[str, Any], train: bool) -> str:
    """Return what differs from torch, or ""."""
    model.train(train)
    outs, grads, state = on_gtrace(model, args, inputs, train)
    right, slopes = on_torch(model, args, inputs)
    if len(outs) != len(right) or any(differing(x, y, 1e-3, 2e-4) for x, y in zip(outs, right, strict=True)):
        return "values"
    largest = max(float(g.abs().max()) for g in slopes.values() if g.numel())
    wrong = [k for k, g in slopes.items() if differing(grads[k], g, 1e-2 * largest, 2e-3)]
    if wrong:
        return f"gradient of {wrong[0]}"
    return "buffers" if any(differing(state[k], x, 1e-3, 2e-4) for k, x in model.named_buffers()) else ""


def differs(name: str, package: str) -> str:
    """Return in which mode a model differs or raises, and how; or ""."""
    for train in (False, True):
        if train and name in SAMPLING:
            continue
        torch.manual_seed(0)
        model = (of_transformers if package == "transformers" else of_timm)(name)
        said = caught(lambda model=model, train=train: compared(*model, train))
        if said:
            return f"{'training' if train else 'evaluation'}: {said}"
    return ""


def caught(run: Any) -> str:
    """Return what a comparison says, or which error it raises."""
    try:
        return str(run())
    except Exception as error:  # noqa: BLE001 - the page says what was raised
        text = (str(error) or "no text").splitlines()[0].partition(" (at ")[0]
        return f"{type(error).__name__}: {text[:150]}"


CACHES = ("past_key_values", "cache", "cache_params", "state")
"""Names of a cache among the results and arguments of models."""

TOKENS = 8


def generated(name: str) -> str:
    """Compare tokens that a model generates greedily, with its cache, with ``model.generate``; return what differs."""
    torch.manual_seed(0)
    model, _, inputs = of_transformers(name)
    model.eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        right = model.generate(input_ids=inputs["input_ids"], max_new_tokens=TOKENS, do_sample=False)[:, -TOKENS:]
    params, apply = gt.from_module(model)
    step, cache, found = gt.array(inputs["input_ids"]), {}, []
    for _ in range(TOKENS):
        given = (step, None, None, cache.pop("state")) if "state" in cache else (step,)  # `state` is a name of apply's
        out, _ = apply(params, *given, use_cache=True, state=apply.state, **cache)
        cache = {name: out[name] for name in CACHES if out.get(name) is not None}
        if not cache:
            return "the model keeps its cache in its own modules"
        step = gt.argmax(out.logits[:, -1], -1)[:, None]
        found.append(np.asarray(step)[:, 0])
    wrong = [k for k in range(TOKENS) if not np.array_equal(found[k], right[:, k].numpy())]
    return f"token {wrong[0] + 1}" if wrong else ""


def errors(name: str) -> list[tuple[float, float]]:
    """Return the errors of gtrace and torch in float32, against torch in float64: of the results, of the gradients.

    They are root mean squares over all elements, relative to those of the right ones.
    """
    torch.manual_seed(0)
    single = of_transformers(name)
    torch.manual_seed(0)
    double = of_transformers(name, precise=True)
    double[0].load_state_dict(single[0].state_dict())
    for model in (single[0], double[0]):
        model.eval()
    right, slopes = on_torch(*double)
    outs, grads, _ = on_gtrace(*single, False)
    theirs, their_slopes = on_torch(*single)
    return [
        (distance(outs, right), distance(theirs, right)),
        (distance([grads[k] for k in slopes], [*slopes.values()]),
         distance([their_slopes[k] for k in slopes], [*slopes.values()])),
    ]  # fmt: skip


def distance(found: list[Any], right: list[Any]) -> float:
    x, y = (torch.cat([_tensor(x).double().flatten() for x in xs]) for xs in (found, right))
    return float((x - y).norm() / y.norm())


def _tensor(x: Any) -> torch.Tensor:
    return x.to_torch() if isinstance(x, gt.Array) else x.detach()


def imprecise(name: str) -> str:
    """Return which errors of gtrace are more than twice torch's, or ""."""
    found = errors(name)
    print(name, *[f"{a:.1e} {b:.1e}" for a, b in found])
    wrong = [what for what, (a, b) in zip(("results", "gradients"), found, strict=True) if a > 2 * b]
    return f"{' and '.join(wrong)}: {max(a / b for a, b in found):.1f} times torch's error" if wrong else ""


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
    tables: dict[str, list[str]] = {"transformers": [*TRANSFORMERS], "timm": [*TIMM]}
    for package, table in tables.items():
        chosen = [name for name in table if not names or name in names or package in names]
        checks = {"models": (chosen, lambda name, package=package: differs(name, package))}
        if package == "transformers":
            checks["generate"] = (
                [name for name in chosen if generating(name)],
                lambda name: caught(lambda: generated(name)),
            )
            checks["precise"] = (
                [name for name in chosen if name in PRECISE],
                lambda name: caught(lambda: imprecise(name)),
            )
        counts, others = {}, []
        for what, (of, check) in checks.items():
            said = {}
            for name in of:
                begin = time.perf_counter()
                said[name] = check(name)
                seconds = time.perf_counter() - begin
                print(f"{what:8} {name:44} {seconds:5.0f} s  {said[name] or 'agrees'}", flush=True)
            counts[what] = [sum(not text for text in said.values()), len(of)]
            others += [f"{name}, {LABELS[what]}{text}" for name, text in said.items() if text]
        if len(chosen) == len(table):
            row = {
                "version": importlib.metadata.version(package), "counts": counts, "names": ", ".join(chosen),
                "others": "; ".join(others), "commit": git.stdout.strip(), "date": str(datetime.date.today()),
            }  # fmt: skip
            page.remember("models", package, row)
    page.write()


LABELS = {"models": "", "generate": "generation: ", "precise": ""}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])

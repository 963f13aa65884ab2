"""Recurrent networks over a sequence: LSTM and GRU, as one loop for each layer and direction."""

from __future__ import annotations

from typing import Any, ClassVar

from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeError,
    gru_step,
    lift,
    lstm_layer,
    lstm_step,
    message,
    ops,
    result_dtype,
    scan,
    tree,
)
from gtrace.nn.common import floating
from gtrace.nn.layers.base import Module, check_key, field, within
from gtrace.nn.layers.linear import linear
from gtrace.nn.regularization import dropout
from gtrace.random.keys import split as split_key

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell"]


def _check_pair(name: str, state: Any) -> None:
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        fix = "Both are arrays: gt.zeros for none."
        raise ArgumentError(message(name, "a pair (h, c) as state", type(state).__name__, fix))


class _Cell(Module):
    """The parameters of a cell.

    Attributes:
        weight_ih: (gates * hidden_size, input_size).
        weight_hh: (gates * hidden_size, hidden_size).
        bias_ih, bias_hh: (gates * hidden_size,), or None.
    """

    gates: ClassVar[int]
    weight_ih: Array
    weight_hh: Array
    bias_ih: Array | None
    bias_hh: Array | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = None, key: Any = None
    ) -> None:
        """Draw the parameters evenly from [-b, b], b = 1 / sqrt(hidden_size).

        Raises:
            ArgumentError: no key.
        """
        rows = self.gates * hidden_size
        keys = split_key(check_key(type(self).__name__, key), 4)
        self.weight_ih = within(keys[0], (rows, input_size), hidden_size, dtype)
        self.weight_hh = within(keys[1], (rows, hidden_size), hidden_size, dtype)
        self.bias_ih = within(keys[2], (rows,), hidden_size, dtype) if bias else None
        self.bias_hh = within(keys[3], (rows,), hidden_size, dtype) if bias else None

    def from_input(self, x: Any) -> Array:
        """Return the input's part of the gates, for a whole sequence with one matmul."""
        return linear(x, self.weight_ih, self.bias_ih)


class LSTMCell(_Cell, init=False):
    """One step of a long short-term memory (Hochreiter and Schmidhuber, 1997), as torch.nn.LSTMCell.

    The rows of the gates are in the order input, forget, cell, output.

    >>> cell = gt.nn.LSTMCell(3, 5, key=gt.random.key(0))
    >>> h, c = cell(gt.ones((2, 3)), (gt.zeros((2, 5)), gt.zeros((2, 5))))
    >>> h.shape
    (2, 5)
    """

    gates = 4

    def __call__(self, x: Any, state: tuple[Any, Any]) -> tuple[Array, Array]:
        """Return the new state (h, c), each (..., hidden_size), for x of shape (..., input_size).

        Raises:
            ArgumentError: the state is not a pair.
        """
        _check_pair("nn.LSTMCell", state)
        return self.step(self.from_input(x), state)

    def step(self, given: Array, state: tuple[Any, Any]) -> tuple[Array, Array]:
        """Return the new state, given the input's part of the gates."""
        h, c = lstm_step(given, state, self.weight_hh, self.bias_hh)
        return h, c


class GRUCell(_Cell, init=False):
    """One step of a gated recurrent unit (Cho et al., 2014), as torch.nn.GRUCell.

    The rows of the gates are in the order reset, update, new.

    >>> gt.nn.GRUCell(3, 5, key=gt.random.key(0))(gt.ones((2, 3)), gt.zeros((2, 5))).shape
    (2, 5)
    """

    gates = 3

    def __call__(self, x: Any, state: Any) -> Array:
        """Return the new state (..., hidden_size) for x of shape (..., input_size)."""
        return self.step(self.from_input(x), state)

    def step(self, given: Array, state: Any) -> Array:
        """Return the new state, given the input's part of the gates."""
        return gru_step(given, state, self.weight_hh, self.bias_hh)


class _Recurrent(Module):
    """Layers of cells over sequences.

    Attributes:
        cells: one for each layer, in order; with `bidirectional`, each is followed by that of the other direction.
    """

    cell: ClassVar[type[_Cell]]
    cells: tuple[Any, ...]
    hidden_size: int = field(static=True)
    bidirectional: bool = field(static=True)
    dropout: float = field(static=True)

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, dropout: float = 0.0,
        bidirectional: bool = False, *, dtype: Any = None, key: Any = None,
    ) -> None:  # fmt: skip
        """Make the cells.

        Args:
            dropout: the probability that an output between layers is dropped, where the call has a key.
            bidirectional: a second cell in each layer runs from the end; outputs are beside one another.

        Raises:
            ArgumentError: no key.
        """
        directions = 1 + bidirectional
        keys = split_key(check_key(type(self).__name__, key), num_layers * directions)
        sizes = [input_size] * directions + [hidden_size * directions] * (num_layers - 1) * directions
        self.cells = tuple(self.cell(size, hidden_size, bias, dtype=dtype, key=keys[k]) for k, size in enumerate(sizes))
        self.hidden_size, self.bidirectional, self.dropout = hidden_size, bidirectional, dropout

    def _run(self, x: Any, states: list[Any], key: Any) -> tuple[Array, list[Any]]:
        """Return the outputs of the last layer and the last state of each cell."""
        directions = 1 + self.bidirectional
        keys = None if key is None or not self.dropout else split_key(key, len(self.cells) // directions)
        steps = ops.moveaxis(x, -2, 0)
        last = []
        for k in range(0, len(self.cells), directions):
            if k and keys is not None:
                steps = dropout(steps, self.dropout, keys[k // directions])
            outputs = []
            for direction in range(directions):
                state, out = self._layer(self.cells[k + direction], steps, states[k + direction], direction == 1)
                last.append(state)
                outputs.append(out)
            steps = outputs[0] if directions == 1 else ops.concat(outputs, -1)
        return ops.moveaxis(steps, 0, -2), last

    def _layer(self, cell: Any, x: Array, state: Any, reverse: bool) -> tuple[Any, Array]:
        """Return the last state of a cell, and its outputs, for x of shape (length, ..., input_size)."""

        def step(state: Any, given: Array) -> tuple[Any, Array]:
            state = cell.step(given, state)
            return state, state[0] if isinstance(state, tuple) else state

        last, out = scan(step, state, cell.from_input(x), reverse=reverse)
        return last, out

    def torch_name(self, path: tree.KeyPath) -> tuple[str, int]:
        """Return a name such as ``weight_ih_l0_reverse`` for the path ``.cells[1].weight_ih``."""
        layer, direction = divmod(path[1].idx, 1 + self.bidirectional)
        return f"{path[2].name}_l{layer}{'_reverse' * direction}", 3

    def _input(self, x: Any) -> Array:
        """Return x after checking its size.

        Raises:
            ShapeError: it differs from the first cell's input size.
        """
        name, size = f"nn.{type(self).__name__}", self.cells[0].weight_ih.shape[1]
        x = floating(name, x)
        if x.ndim < 2 or x.shape[-1] != size:
            expected = f"input_size {size} on the last of two axes"
            raise ShapeError(message(name, expected, repr(x.aval), "The axes are (..., length, input_size)."))
        return x

    def _start(self, x: Array, state: Any) -> Array:
        """Return the initial state of all cells: the given one, or zeros.

        Raises:
            ShapeError: the state has another shape.
        """
        shape = (len(self.cells), *x.shape[:-2], self.hidden_size)
        if state is None:
            return ops.zeros(shape, result_dtype((x.aval, self.cells[0].weight_hh.aval)), device=x.aval.device)
        name = f"nn.{type(self).__name__}"
        given = lift(name, state)
        if given.shape != shape:
            fix = "A state has an entry for each layer and direction, then the batch axes of x."
            raise ShapeError(message(name, f"states of shape {shape}", repr(given.aval), fix))
        return given


class LSTM(_Recurrent, init=False):
    """Long short-term memory over a sequence, as torch.nn.LSTM with ``batch_first=True``.

    >>> lstm = gt.nn.LSTM(3, 5, num_layers=2, key=gt.random.key(0))
    >>> out, (h, c) = lstm(gt.ones((4, 7, 3)))
    >>> out.shape, h.shape, c.shape
    ((4, 7, 5), (2, 4, 5), (2, 4, 5))
    """

    cell = LSTMCell

    def __call__(self, x: Any, state: Any = None, *, key: Any = None) -> tuple[Array, tuple[Array, Array]]:
        """Return the outputs and the last state.

        Args:
            x: (..., length, input_size).
            state: (h, c), each (cells, ..., hidden_size); None: zeros.
            key: for dropout.

        Returns:
            (..., length, directions * hidden_size), and (h, c).

        Raises:
            ArgumentError: the state is not a pair.
            ShapeError: x or a state has another shape.
        """
        x = self._input(x)
        state = (None, None) if state is None else state
        _check_pair("nn.LSTM", state)
        h, c = (self._start(x, one) for one in state)
        out, last = self._run(x, [(h[k], c[k]) for k in range(len(self.cells))], key)
        return out, (ops.stack([s[0] for s in last]), ops.stack([s[1] for s in last]))

    def _layer(self, cell: Any, x: Array, state: Any, reverse: bool) -> tuple[Any, Array]:
        """See `_Recurrent._layer`. oneDNN runs a whole layer, as in torch, where it has a kernel."""
        if type(cell) is not LSTMCell or (cell.bias_ih is None) != (cell.bias_hh is None):
            return super()._layer(cell, x, state, reverse)
        h, c = (one.reshape(-1, self.hidden_size) for one in state)
        weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
        out, *last = lstm_layer(x.reshape(x.shape[0], -1, x.shape[-1]), h, c, *weights, reverse)
        h, c = (one.reshape(*x.shape[1:-1], self.hidden_size) for one in last)
        return (h, c), out.reshape(*x.shape[:-1], self.hidden_size)


class GRU(_Recurrent, init=False):
    """Gated recurrent units over a sequence, as torch.nn.GRU with ``batch_first=True``.

    >>> out, h = gt.nn.GRU(3, 5, bidirectional=True, key=gt.random.key(0))(gt.ones((4, 7, 3)))
    >>> out.shape, h.shape
    ((4, 7, 10), (2, 4, 5))
    """

    cell = GRUCell

    def __call__(self, x: Any, state: Any = None, *, key: Any = None) -> tuple[Array, Array]:
        """Return the outputs and the last state; see `LSTM`. The state is h alone."""
        x = self._input(x)
        h = self._start(x, state)
        out, last = self._run(x, [h[k] for k in range(len(self.cells))], key)
        return out, ops.stack(last)

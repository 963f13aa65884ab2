"""``jax.example_libraries.optimizers``: an optimizer is three functions over pytrees.

``init_fun(params)`` returns a state, ``update_fun(step, gradients, state)`` the next one, and ``params_fun(state)`` the
parameters. `gtrace.optim` is what programs of gtrace's own use.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gtrace.jax.numpy as jnp
from gtrace.extend import tree

InitFn: TypeAlias = Callable[..., Any]
UpdateFn: TypeAlias = Callable[..., Any]
ParamsFn: TypeAlias = Callable[..., Any]
Schedule: TypeAlias = Callable[..., Any]


class Optimizer(NamedTuple):
    """The functions of an optimizer."""

    init_fn: InitFn
    update_fn: UpdateFn
    params_fn: ParamsFn


class OptimizerState(NamedTuple):
    """The states of all leaves of the parameters, as lists of leaves, with their structures."""

    packed_state: Any
    tree_def: Any
    subtree_defs: Any


tree.register_pytree_node(
    OptimizerState,
    lambda state: ((state.packed_state,), (state.tree_def, state.subtree_defs)),
    lambda structures, children: OptimizerState(children[0], *structures),
)


def _packed(structure: Any, states: list[Any]) -> OptimizerState:
    pairs = [tree.flatten(state) for state in states]
    return OptimizerState(tuple(leaves for leaves, _ in pairs), structure, tuple(below for _, below in pairs))


def _unpacked(state: OptimizerState) -> list[Any]:
    return [tree.unflatten(s, x) for s, x in zip(state.subtree_defs, state.packed_state, strict=True)]


def optimizer(opt_maker: Callable[..., Any]) -> Callable[..., Optimizer]:
    """Make an optimizer of pytrees from one of arrays, a function that returns its three functions.

    >>> import gtrace.jax as jax
    >>> @optimizer
    ... def descent(rate):
    ...     return lambda x: x, lambda step, gradient, x: x - rate * gradient, lambda x: x
    >>> init_fun, update_fun, params_fun = descent(0.5)
    >>> state = update_fun(0, {"w": jax.numpy.ones(2)}, init_fun({"w": jax.numpy.zeros(2)}))
    >>> params_fun(state)["w"].tolist()
    [-0.5, -0.5]
    """

    @functools.wraps(opt_maker)
    def made(*args: Any, **kwargs: Any) -> Optimizer:
        init, update, get_params = opt_maker(*args, **kwargs)

        def init_all(params: Any) -> OptimizerState:
            leaves, structure = tree.flatten(params)
            return _packed(structure, [init(leaf) for leaf in leaves])

        def update_all(step: Any, grads: Any, state: OptimizerState) -> OptimizerState:
            leaves, structure = tree.flatten(grads)
            if structure != state.tree_def:
                raise TypeError(
                    f"optimizer update function was passed a gradient tree of structure {structure}, and initialized "
                    f"with parameters of structure {state.tree_def}."
                )
            states = [update(step, leaf, own) for leaf, own in zip(leaves, _unpacked(state), strict=True)]
            return _packed(structure, states)

        def all_params(state: OptimizerState) -> Any:
            return tree.unflatten(state.tree_def, [get_params(own) for own in _unpacked(state)])

        return Optimizer(init_all, update_all, all_params)

    return made


_first = operator.itemgetter(0)


def _with_zeros(count: int) -> Callable[[Any], Any]:
    """Return an `init` for a state of the parameters and `count` arrays of zeros like them."""
    return lambda x: (x, *[jnp.zeros_like(x) for _ in range(count)])


def _inverse_root(x: Any) -> Any:
    """Return 1 / sqrt(x), and 0 where x is."""
    return jnp.where(x > 0, 1.0 / jnp.sqrt(x), 0.0)


@optimizer
def sgd(step_size: Any) -> Any:
    """Gradient descent."""
    rate = make_schedule(step_size)
    return lambda x: x, lambda i, g, x: x - rate(i) * g, lambda x: x


@optimizer
def momentum(step_size: Any, mass: float) -> Any:
    """Gradient descent with momentum."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - rate(i) * velocity, velocity

    return _with_zeros(1), update, _first


@optimizer
def nesterov(step_size: Any, mass: float) -> Any:
    """Gradient descent with Nesterov's momentum."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - rate(i) * (mass * velocity + g), velocity

    return _with_zeros(1), update, _first


@optimizer
def adagrad(step_size: Any, momentum: float = 0.9) -> Any:
    """Adagrad, with momentum."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, mean = state
        squares = squares + jnp.square(g)
        mean = (1.0 - momentum) * (g * _inverse_root(squares)) + momentum * mean
        return x - rate(i) * mean, squares, mean

    return _with_zeros(2), update, _first


@optimizer
def rmsprop(step_size: Any, gamma: float = 0.9, eps: float = 1e-8) -> Any:
    """RMSProp."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean_square = state
        mean_square = mean_square * gamma + jnp.square(g) * (1.0 - gamma)
        return x - rate(i) * g / jnp.sqrt(mean_square + eps), mean_square

    return _with_zeros(1), update, _first


@optimizer
def rmsprop_momentum(step_size: Any, gamma: float = 0.9, eps: float = 1e-8, momentum: float = 0.9) -> Any:
    """RMSProp with momentum."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean_square, velocity = state
        mean_square = mean_square * gamma + jnp.square(g) * (1.0 - gamma)
        velocity = momentum * velocity + rate(i) * g / jnp.sqrt(mean_square + eps)
        return x - velocity, mean_square, velocity

    return _with_zeros(2), update, _first


@optimizer
def adam(step_size: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """Adam."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, square = state
        mean = (1 - b1) * g + b1 * mean
        square = (1 - b2) * jnp.square(g) + b2 * square
        mean_hat = mean / (1 - jnp.asarray(b1, mean.dtype) ** (i + 1))
        square_hat = square / (1 - jnp.asarray(b2, mean.dtype) ** (i + 1))
        return x - rate(i) * mean_hat / (jnp.sqrt(square_hat) + eps), mean, square

    return _with_zeros(2), update, _first


@optimizer
def adamax(step_size: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """Adamax, Adam with a greatest value in place of a mean of squares."""
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, greatest = state
        mean = (1 - b1) * g + b1 * mean
        greatest = jnp.maximum(b2 * greatest, jnp.abs(g))
        step = rate(i) / (1 - jnp.asarray(b1, mean.dtype) ** (i + 1))
        return x - step * mean / (greatest + eps), mean, greatest

    return _with_zeros(2), update, _first


@optimizer
def sm3(step_size: Any, momentum: float = 0.9) -> Any:
    """SM3, which keeps one number for each index of each axis."""
    rate = make_schedule(step_size)

    def init(x: Any) -> Any:
        x = jnp.asarray(x)
        flat = jnp.atleast_1d(x)
        return flat, jnp.zeros_like(flat), [jnp.zeros(size, flat.dtype) for size in flat.shape], x.shape

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, parts, shape = state
        spread = [part.reshape([-1 if k == axis else 1 for k in range(x.ndim)]) for axis, part in enumerate(parts)]
        squares = functools.reduce(jnp.minimum, spread) + jnp.square(g)
        mean = (1.0 - momentum) * (g * _inverse_root(squares)) + momentum * mean
        parts = [squares.max(tuple(k for k in range(x.ndim) if k != axis)) for axis in range(x.ndim)]
        return x - rate(i) * mean, mean, parts, shape

    return init, update, lambda state: state[0].reshape(state[3])


# -- schedules


def constant(step_size: Any) -> Schedule:
    """Return the same step for all times."""
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """Return steps that fall by a factor `decay_rate` in `decay_steps`."""
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False) -> Schedule:
    """Return steps that fall as 1 / time; `staircase`: at multiples of `decay_steps` alone."""
    if staircase:
        return lambda i: step_size / (1 + decay_rate * jnp.floor(i / decay_steps))
    return lambda i: step_size / (1 + decay_rate * i / decay_steps)


def polynomial_decay(step_size: Any, decay_steps: Any, final_step_size: Any, power: float = 1.0) -> Schedule:
    """Return steps that reach `final_step_size` after `decay_steps`."""

    def schedule(i: Any) -> Any:
        left = (1 - jnp.minimum(i, decay_steps) / decay_steps) ** power
        return left * (step_size - final_step_size) + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """Return steps that change at boundaries, of which there is one less than of values.

    Raises:
        ValueError: other shapes.
    """
    edges, steps = jnp.array(boundaries), jnp.array(values)
    if not edges.ndim == steps.ndim == 1:
        raise ValueError("boundaries and values must be sequences")
    if edges.shape[0] != steps.shape[0] - 1:
        raise ValueError("boundaries length must be one shorter than values length")
    return lambda i: steps[jnp.sum(i > edges)]


def make_schedule(scalar_or_schedule: Any) -> Schedule:
    """Return a schedule as it is, and a number as a constant one.

    Raises:
        TypeError: neither.
    """
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    if jnp.ndim(scalar_or_schedule) == 0:
        return constant(scalar_or_schedule)
    raise TypeError(type(scalar_or_schedule))


# -- gradients and states


def l2_norm(tree_: Any) -> Any:
    """Return the norm of all leaves of a pytree, as one vector."""
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in tree.leaves(tree_)))


def clip_grads(grad_tree: Any, max_norm: Any) -> Any:
    """Return gradients, scaled down to the norm `max_norm` if theirs is larger."""
    norm = l2_norm(grad_tree)
    return tree.map(lambda g: jnp.where(norm < max_norm, g, g * (max_norm / norm)), grad_tree)


class JoinPoint:
    """The state of one leaf of the parameters in a pytree like them."""

    def __init__(self, subtree: Any) -> None:
        self.subtree = subtree

    def __iter__(self) -> Any:
        yield self.subtree


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """Return a pytree like the parameters with a `JoinPoint` for each leaf, to be saved."""
    return tree.unflatten(opt_state.tree_def, [JoinPoint(own) for own in _unpacked(opt_state)])


def pack_optimizer_state(marked_pytree: Any) -> OptimizerState:
    """Return the state that `unpack_optimizer_state` took apart."""
    points, structure = tree.flatten(marked_pytree)
    return _packed(structure, [point.subtree for point in points])

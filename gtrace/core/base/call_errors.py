"""Errors for calls with an unknown keyword or without a required argument. They say what to write instead.

Python rejects such a call with a TypeError before the function runs. Checking the arguments of every call would slow
recording, so only constructors of optimizers, schedules and modules are decorated.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from gtrace.core.base.errors import ArgumentError, message

F = TypeVar("F", bound=Callable[..., Any])

_RENAMED = {
    "lr": ("learning_rate",),
    "betas": ("b1", "b2"),
    "gamma": ("decay_rate",),
    "T_max": ("decay_steps",),
    "total_iters": ("transition_steps",),
    "clip_value": ("max_delta",),
    "p": ("rate",),
    "std": ("stddev",),
}
"""Keywords of torch, by those of gtrace that mean the same."""

_NO_PARAMETERS = "Optimizers hold no parameters: pass them to init and update."

_INSTEAD = {
    "params": _NO_PARAMETERS,
    "parameters": _NO_PARAMETERS,
    "weight_decay": "Chain gt.optim.add_decayed_weights before it, or use gt.optim.adamw.",
    "inplace": "Arrays never change: use the result.",
    "generator": "Pass a key, such as gt.random.key(0).",
    "device": "Move the result, by x.to(device).",
}
"""Advice for keywords without a counterpart."""

_UNKNOWN = re.compile(r"got an unexpected keyword argument '(.+?)'")
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.+)")
_TOO_MANY = re.compile(r"takes .*positional arguments? but (\d+) ")
_TWICE = re.compile(r"got multiple values for argument '(.+)'")


_PREFIXES = {"nn.initializers": "nn.initializers.", "nn": "nn.", "optim": "optim."}
"""The prefixes of functions' names in messages, by the module that defines them."""


def constructor(function: F) -> F:
    """Return a function that raises an ArgumentError with advice for a call with wrong arguments.

    A call takes a little longer. Use it for functions that programs call once, such as those that make optimizers.

    >>> @constructor
    ... def sgd(learning_rate, momentum=None): ...
    >>> sgd(lr=0.1)
    Traceback (most recent call last):
    gtrace.errors.ArgumentError: [sgd] expected learning_rate=, got lr=. It takes (learning_rate, momentum=None)...
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # a line of the function raised it
                raise
            owner = type(args[0]) if function.__name__ == "__init__" else None
            refused = _refused(function, str(error), _name(owner or function))
            if refused is None:
                raise
            raise refused from None

    return call  # type: ignore[return-value]


def _refused(function: Callable[..., Any], text: str, name: str) -> ArgumentError | None:
    """Return the error for a call that Python rejects with this text."""
    parameters = list(inspect.signature(function).parameters.values())
    method = bool(parameters) and parameters[0].name == "self"
    parameters = parameters[method:]
    fix = f"It takes ({_listed(parameters)})."
    if found := _UNKNOWN.search(text):
        expected, advice = _replacement(found[1], {p.name for p in parameters})
        got = f"{found[1]}="
        fix = f"{advice} {fix}" if advice else fix
    elif found := _MISSING.search(text):
        expected, got = found[1].replace("'", ""), "no value"
    elif found := _TOO_MANY.search(text):
        most = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        expected, got = f"at most {most} argument{'s' * (most != 1)} by position", str(int(found[1]) - method)
    elif found := _TWICE.search(text):
        expected, got = f"{found[1]} once", "it by position and by keyword"
    else:
        return None
    return ArgumentError(message(name, expected, got, fix))


def _name(called: Callable[..., Any]) -> str:
    """Return the name of a function or a class in messages."""
    module = called.__module__.removeprefix("gtrace.") + "."
    prefix = next((p for room, p in _PREFIXES.items() if module.startswith(f"{room}.")), "")
    return prefix + called.__qualname__.rpartition(".")[2]


def _listed(parameters: list[inspect.Parameter]) -> str:
    """Return the parameters as declared, without annotations."""
    plain = [p.replace(annotation=p.empty, default=_default(p)) for p in parameters]
    return str(inspect.Signature(plain))[1:-1]


def _default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    short = default is parameter.empty or isinstance(default, bool | int | float | str | tuple | None)
    return default if short else ...


def _replacement(keyword: str, known: set[str]) -> tuple[str, str]:
    """Return the expected keyword in place of another one, and advice."""
    renamed = _RENAMED.get(keyword, ())
    if renamed and known.issuperset(renamed):
        return " and ".join(f"{name}=" for name in renamed), ""
    if keyword in _INSTEAD:
        return "one of its arguments", _INSTEAD[keyword]
    near = difflib.get_close_matches(keyword, sorted(known), n=1)
    return f"{near[0]}=" if near else "one of its arguments", ""

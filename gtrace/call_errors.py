"""Calls with a keyword that a function does not have, or without an argument that it needs: what to write instead.

Python refuses such a call with a TypeError before any line of the function runs. To look at the arguments of every call
would take time wherever an operation is recorded. So the error is replaced on its way: by the functions that make
optimizers and modules, where gtrace calls functions of the user's, and where an uncaught exception is shown.
"""

from __future__ import annotations

import difflib
import dis
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gtrace.errors import ArgumentError, is_users, message

F = TypeVar("F", bound=Callable[..., Any])

_RENAMED = {
    "input": "x",
    "keepdim": "keepdims",
    "dim": "axis axes",
    "dims": "axes axis reps",
    "axes": "axis",
    "dim0": "axis1",
    "dim1": "axis2",
    "size": "shape",
    "newshape": "shape",
    "unbiased": "correction",
    "other": "y",
    "tensors": "arrays",
    "tensor": "x",
    "data": "obj",
    "index": "indices",
    "target": "targets",
    "weight": "table",
    "end": "stop",
    "steps": "num",
    "n": "n_rows",
    "m": "n_cols",
    "diagonal": "k",
    "shifts": "shift",
    "low": "minval lower",
    "high": "maxval upper",
    "split_size_or_sections": "indices_or_sections",
    "sections": "indices_or_sections",
    "chunks": "indices_or_sections",
    "a_min": "min",
    "a_max": "max",
    "ord": "p",
    "p": "rate ord",
    "attn_mask": "mask",
    "key_padding_mask": "mask",
    "std": "stddev",
    "lr": "learning_rate",
    "betas": "b1+b2",
    "T_max": "decay_steps",
    "total_iters": "transition_steps",
    "gamma": "decay_rate",
    "clip_value": "max_delta",
}
"""Keywords of torch's and NumPy's: those of gtrace's for the same, of which a function may have one; a + joins two."""

_FIRST = frozenset({"input", "self", "a", "A", "x", "tensors", "arrays"})
"""What others call the first argument."""

_UNCHANGED = "Arrays never change: use the result."
_NO_PARAMETERS = "Optimizers hold no parameters: pass them to init and update."
_SHOWN = "Arrays show no memory: leave it out."
_SCALED = "Write mean + std * gt.random.normal(key, shape)."

_INSTEAD = {
    "out": _UNCHANGED,
    "inplace": _UNCHANGED,
    "requires_grad": "Gradients are computed where gt.grad asks for them: leave it out.",
    "generator": "Pass a key, such as gt.random.key(0).",
    "params": _NO_PARAMETERS,
    "parameters": _NO_PARAMETERS,
    "layout": _SHOWN,
    "pin_memory": _SHOWN,
    "memory_format": _SHOWN,
    "size_average": "Write reduction='mean', 'sum' or 'none'.",
    "reduce": "Write reduction='mean', 'sum' or 'none'.",
    "right": "Write side='right'.",
    "alpha": "Multiply the second operand by it.",
    "weight_decay": "Chain gt.optim.add_decayed_weights before it, or use gt.optim.adamw.",
    "mean": _SCALED,
    "std": _SCALED,
    "dim0": "Use gt.swapaxes(x, axis1, axis2).",
    "dim1": "Use gt.swapaxes(x, axis1, axis2).",
    "device": "Move the result, by x.to(device).",
}
"""What to do in place of a keyword that has no counterpart."""

_UNKNOWN = re.compile(r"got an unexpected keyword argument '(.+?)'")
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.+)")
_TOO_MANY = re.compile(r"takes .*positional arguments? but (\d+) ")
_TWICE = re.compile(r"got multiple values for argument '(.+)'")
_BY_PLACE = re.compile(r"got some positional-only arguments passed as keyword arguments: '(.+)'")

_PREFIXES = {
    "nn.initializers": "nn.initializers.",
    "nn": "nn.",
    "optim": "optim.",
    "random": "random.",
    "numpy.linalg": "linalg.",
    "numpy.fft": "fft.",
    "lax": "lax.",
}
"""What messages put before the names of functions, by where those are defined."""


def constructor(function: F) -> F:
    """Return a function whose calls with wrong arguments raise an ArgumentError that says what to write.

    A call takes a little longer: it is for functions that programs call once, as those that make optimizers.

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


def clarify(error: TypeError) -> None:
    """Raise an ArgumentError in place of an error, if that is of a call of gtrace's with wrong arguments."""
    clear = explained(error, error.__traceback__)
    if clear is not None:
        raise clear.with_traceback(error.__traceback__) from None


def explained(error: BaseException, trace: types.TracebackType | None) -> ArgumentError | None:
    """Return what is raised in place of an error and its traceback; None for any other error.

    The called function is found from the names at the place of the call. An error is never ascribed to gtrace by the
    name of a function alone, as another library may have a function of the same name.
    """
    if type(error) is not TypeError or trace is None:
        return None
    location = None
    while True:
        code = trace.tb_frame.f_code
        users = is_users(code.co_filename)
        if users:
            location = f"{code.co_filename}:{trace.tb_lineno}"
        if trace.tb_next is None:
            break
        trace = trace.tb_next
    instructions = list(dis.get_instructions(code))
    place = next((k for k, x in enumerate(instructions) if x.offset == trace.tb_lasti), None)
    # gtrace's own calls are explained where they pass on what the user gave
    if place is None or not (users or instructions[place].opname == "CALL_FUNCTION_EX"):
        return None
    names = _called(instructions, place)
    if not names:
        return None
    frame = trace.tb_frame
    called = frame.f_locals.get(names[0], frame.f_globals.get(names[0]))
    for name in names[1:]:
        called = _attribute(called, name)
    while isinstance(called, functools.partial):
        called = called.func
    text = str(error)
    for function in _functions(called):
        if text.startswith(f"{function.__qualname__}()") and function.__module__.startswith("gtrace."):
            if isinstance(called, types.FunctionType):
                name = _name(called, names[-1] if len(names) > 1 else None)
            else:
                name = _name(called if isinstance(called, type) else type(called))
            clear = _refused(function, text, name, location)
            if clear is not None:
                clear.__cause__, clear.__context__ = error.__cause__, error.__context__
                clear.__suppress_context__ = error.__suppress_context__
            return clear
    return None


def _called(instructions: list[dis.Instruction], place: int) -> list[str]:
    """Return the dotted name of what a call calls, part by part; none if it is no name."""
    call = instructions[place].positions
    if call is None or call.lineno is None or call.end_lineno is None:  # python -X no_debug_ranges
        return []
    names: list[str] = []
    for x in reversed(instructions[:place]):
        at = x.positions
        if at is None or (at.lineno, at.col_offset) != (call.lineno, call.col_offset):
            continue
        if (at.end_lineno, at.end_col_offset) == (call.end_lineno, call.end_col_offset):
            continue
        if x.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(x.argval)
        elif x.opname.startswith(("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")):
            return [x.argval, *reversed(names)] if isinstance(x.argval, str) else []
        elif x.opname not in ("PUSH_NULL", "KW_NAMES", "PRECALL", "LOAD_CONST"):  # the last for names of keywords
            return []
    return []


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute, without running code of the user's."""
    found = inspect.getattr_static(value, name, None)
    if isinstance(found, types.MemberDescriptorType):
        return found.__get__(value)
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def _functions(called: Any) -> Iterator[types.FunctionType]:
    """Yield the Python functions that a call of this object may run first."""
    if isinstance(called, types.MethodType):
        yield from _functions(called.__func__)
    elif isinstance(called, types.FunctionType):
        yield called
    else:
        of = (called, "__init__", "__new__") if isinstance(called, type) else (type(called), "__call__")
        for name in of[1:]:
            found = _attribute(of[0], name)
            if isinstance(found, types.FunctionType):
                yield found


def _refused(function: Callable[..., Any], text: str, name: str, location: str | None = None) -> ArgumentError | None:
    """Return the error for a call that Python refuses with this text."""
    parameters = list(inspect.signature(function).parameters.values())
    method = bool(parameters) and parameters[0].name == "self"
    parameters = parameters[method:]
    fix = f"It takes ({_listed(parameters)})."
    if found := _UNKNOWN.search(text):
        expected, advice = _replacement(found[1], parameters)
        got = f"{found[1]}="
        fix = f"{advice} {fix}" if advice else fix
    elif found := _MISSING.search(text):
        expected, got = found[1].replace("'", ""), "no value"
        if "'key'" in found[1] and "random" in function.__module__:
            fix = f"Pass gt.random.key(0) or another. {fix}"
    elif found := _TOO_MANY.search(text):
        most = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        expected, got = f"at most {most} argument{'s' * (most != 1)} by position", str(int(found[1]) - method)
    elif found := _TWICE.search(text):
        expected, got = f"{found[1]} once", "it by position and by keyword"
    elif found := _BY_PLACE.search(text):
        expected, got = f"{found[1]} by position", "a keyword"
    else:
        return None
    return ArgumentError(message(name, expected, got, fix, location))


def _name(called: Callable[..., Any], alias: str | None = None) -> str:
    """Return how messages name a function or a class."""
    owner, _, name = called.__qualname__.rpartition("<locals>.")[2].rpartition(".")
    if owner:
        return f"Array.{name}" if owner in ("ArrayMethods", "TensorMethods") else f"{owner}.{name}"
    module = called.__module__.removeprefix("gtrace.") + "."
    return next((p for room, p in _PREFIXES.items() if module.startswith(f"{room}.")), "") + (alias or name)


def _listed(parameters: list[inspect.Parameter]) -> str:
    """Return the parameters as they are declared, without annotations."""
    plain = [p.replace(annotation=p.empty, default=_default(p)) for p in parameters]
    return str(inspect.Signature(plain))[1:-1]


def _default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    short = default is parameter.empty or isinstance(default, bool | int | float | str | tuple | None)
    return default if short else ...


def _replacement(keyword: str, parameters: list[inspect.Parameter]) -> tuple[str, str]:
    """Return what is expected in place of a keyword, and advice."""
    known = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    for candidate in _RENAMED.get(keyword, "").split():
        new = candidate.split("+")
        if known.keys() >= set(new):
            return " and ".join(_by_keyword(known[name], list(known)) for name in new), ""
    if keyword in _FIRST and known:
        return _by_keyword(next(iter(known.values())), list(known)), ""
    if keyword in _INSTEAD:
        return "one of its arguments", _INSTEAD[keyword]
    near = difflib.get_close_matches(keyword, known, n=1)
    return _by_keyword(known[near[0]], list(known)) if near else "one of its arguments", ""


def _by_keyword(parameter: inspect.Parameter, names: list[str]) -> str:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return f"argument {names.index(parameter.name) + 1} by position"
    return f"{parameter.name}="


def watch() -> None:
    """Show an uncaught error of a call with wrong arguments as what `explained` makes of it.

    In a script and at Python's prompt it is shown in place of the error; in a notebook below it.
    """
    show = sys.excepthook

    def show_clearly(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        clear = explained(error, trace)
        if clear is None:
            show(kind, error, trace)
        else:
            show(type(clear), clear.with_traceback(trace), trace)

    sys.excepthook = show_clearly
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    error = result.error_in_exec
    clear = None if error is None else explained(error, error.__traceback__)
    if clear is not None:
        print(clear, file=sys.stderr)

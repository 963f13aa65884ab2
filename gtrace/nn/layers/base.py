"""The base class of modules: attrs fields, a pytree node, frozen once its fields are set."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self, dataclass_transform

import attrs
import torch

from gtrace.extend import (
    LONG,
    ArgumentError,
    Array,
    ImmutableAttributeError,
    constructor,
    message,
    missing_attribute,
    tree,
)
from gtrace.random.continuous import uniform

__all__ = ["Module", "field"]

_TORCH_METHODS = {
    "Pass a key to calls that train, and training=True to BatchNorm; calls without them are evaluation.": "train eval",
    "A module is a pytree: see gt.tree.leaves(model), and gt.nn.state_dict(model) for arrays by name.": (
        "parameters named_parameters buffers named_buffers modules named_modules children named_children"
    ),
    "Use gt.tree.map(lambda x: x.to(...), model); gt.nn.Policy is for mixed precision.": (
        "to cuda cpu float double half bfloat16 type"
    ),
    "Use gt.nn.state_dict(model), and model = gt.nn.load_state_dict(model, state).": "state_dict load_state_dict",
    "Gradients are functions: use gt.grad(loss)(model).": "zero_grad requires_grad_",
    "Declare a field of the class, and set it in __init__.": (
        "register_parameter register_buffer register_module add_module"
    ),
    "Modules are called: write __call__.": "forward",
}
"""Replacements for methods of torch.nn.Module."""

WIDTH = 100
"""The width of a module's text; longer nodes use one line per field."""


def field(*, static: bool = False, **options: Any) -> Any:
    """Return a field of a `Module`, with the options of ``attrs.field`` such as `default`.

    Args:
        static: the value is part of the structure, not a leaf: a hashable setting such as a size or a function.
        options: options of ``attrs.field``.

    >>> class Power(gt.nn.Module):
    ...     exponent: int = gt.nn.field(static=True, default=2)
    ...     def __call__(self, x):
    ...         return x**self.exponent
    >>> gt.tree.leaves(Power()), float(Power(3)(2.0))
    ([], 8.0)
    """
    return attrs.field(**{**options, "metadata": {**(options.get("metadata") or {}), "static": static}})


@dataclass_transform(field_specifiers=(field,), eq_default=False)
class Module:
    """Base class of modules: frozen pytrees of arrays and other modules, with a function to call.

    The annotated fields of a class are its children; fields made by ``gt.nn.field(static=True)`` are part of its
    structure. A class without an ``__init__`` gets one that takes the fields in order. An ``__init__`` sets each field
    once, and it stays: training makes new modules, as `gt.tree.map` and `replace` do.

    >>> class Affine(gt.nn.Module):
    ...     scale: gt.Array
    ...     shift: gt.Array
    ...     power: int = gt.nn.field(static=True, default=1)
    ...     def __call__(self, x):
    ...         return self.scale * x**self.power + self.shift
    >>> model = Affine(gt.array(2.0), gt.array(1.0))
    >>> model(3.0)
    Array(7., dtype=float32)
    >>> gt.grad(lambda m: m(3.0))(model).scale
    Array(3., dtype=float32)
    >>> model
    Affine(scale=float32[], shift=float32[], power=1)
    """

    _written_init: ClassVar[bool] = False  # whether an __init__ was written, here or in a base class

    def __init_subclass__(cls, *, init: bool = True, **kwargs: Any) -> None:
        """Make a class of fields.

        Args:
            init: False tells type checkers that an ``__init__`` is inherited, and has no other effect.
        """
        super().__init_subclass__(**kwargs)
        cls._written_init = cls._written_init or "__init__" in cls.__dict__ or not init
        # comparing arrays gives an array, so modules are compared by identity
        attrs.define(
            cls, init=not cls._written_init, slots=False, eq=False, repr=False, auto_attribs=True,
            on_setattr=attrs.setters.NO_OP,
        )  # fmt: skip
        if "__init__" in cls.__dict__:
            cls.__init__ = constructor(cls.__init__)  # type: ignore[method-assign]
        tree.register_immutable(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        cls: Any = type(self)
        if name not in attrs.fields_dict(cls):
            known = ", ".join(attrs.fields_dict(cls)) or "none"
            raise ArgumentError(
                message(f"nn.{cls.__name__}", f"one of the declared fields ({known})", repr(name),
                        f"Declare it in the class: {name}: gt.Array.")
            )  # fmt: skip
        if name in self.__dict__:
            fix = f"Modules are immutable: use module.replace({name}=value), or gt.tree.map."
            raise ImmutableAttributeError(message(f"nn.{cls.__name__}", "no assignment", repr(name), fix))
        object.__setattr__(self, name, value)
        self.__dict__.pop("_static", None)  # kept by `gt.tree`, if an __init__ has used the module already

    def __delattr__(self, name: str) -> None:
        fix = "Modules are immutable."
        raise ImmutableAttributeError(message(f"nn.{type(self).__name__}", "no deletion", repr(name), fix))

    def __getattr__(self, name: str) -> Any:
        # only for missing attributes: an __init__ may leave fields at their defaults, as in dataclasses
        cls: Any = type(self)
        attribute = attrs.fields_dict(cls).get(name)
        if attribute is None:
            raise missing_attribute(self, name, _TORCH_METHODS)
        if attribute.default is attrs.NOTHING or isinstance(attribute.default, attrs.Factory):  # type: ignore[arg-type]
            expected = f"the field {name!r} to be set in __init__"
            raise AttributeError(message(f"nn.{cls.__name__}", expected, "none", "Set it there, or give it a default."))
        return attribute.default

    def replace(self, **changes: Any) -> Self:
        """Return a copy of this module with other values of some fields.

        Raises:
            ArgumentError: the class has no such field.
        """
        new = object.__new__(type(self))
        for name, value in {**self.__dict__, **changes}.items():
            if name != "_static":  # kept by `gt.tree` beside the fields
                setattr(new, name, value)
        return new

    def torch_name(self, path: tree.KeyPath) -> tuple[str, int]:
        """Return torch's name of the first steps of a path in this module, and their number; here one, the field.

        Classes with other names in torch override it.
        """
        return path[0].name, 1

    def __repr__(self) -> str:
        return _text(self, 0)


def _text(value: Any, indent: int) -> str:
    """Return a field's value in one line if it fits, else with one line per part."""
    if isinstance(value, Module):
        cls: Any = type(value)
        head, tail = f"{cls.__name__}(", ")"
        parts = [(f"{a.name}=", getattr(value, a.name)) for a in attrs.fields(cls)]
    elif type(value) in (tuple, list):
        head, tail = "[]" if type(value) is list else ("(", ",)" if len(value) == 1 else ")")
        parts = [("", x) for x in value]
    elif type(value) is dict:
        head, tail, parts = "{", "}", [(f"{key!r}: ", x) for key, x in value.items()]
    elif type(value) is Array:
        return f"{LONG[value.aval.dtype]}[{','.join(map(str, value.shape))}]"
    else:
        return getattr(value, "__name__", None) or repr(value)
    inner = [label + _text(x, indent + 2) for label, x in parts]
    line = head + ", ".join(inner) + tail
    if len(line) + indent <= WIDTH and "\n" not in line:
        return line
    space = "\n" + " " * (indent + 2)
    return head + "".join(f"{space}{x}," for x in inner) + "\n" + " " * indent + tail[-1]


def check_key(name: str, key: Any) -> Any:
    """Return a key for initial values.

    Raises:
        ArgumentError: the key is missing.
    """
    if key is None:
        raise ArgumentError(message(f"nn.{name}", "a key for its initial values", "None", "Pass key=gt.random.key(0)."))
    return key


def check_function(name: str, what: str, function: Any) -> Any:
    """Return a function that a module calls.

    Raises:
        ArgumentError: it is not a function, but for example a function's name.
    """
    if not callable(function):
        fix = "Pass gt.relu or another; torch's 'gelu' is functools.partial(gt.nn.gelu, approximate=False)."
        raise ArgumentError(message(f"nn.{name}", f"a function as {what}", repr(function), fix))
    return function


def default_dtype(dtype: Any) -> Any:
    """Return the dtype of parameters: the given one, or float32."""
    return torch.float32 if dtype is None else dtype


def within(key: Any, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Array:
    """Sample uniformly from [-b, b] for b = 1 / sqrt(fan_in), as most layers of torch.nn do initially."""
    bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
    return uniform(key, shape, default_dtype(dtype), -bound, bound)

"""Of ``jax.experimental.hijax``, the classes that flax makes subclasses of when it is imported, and that it asks for.

Types of values and operations of a program's own cannot be used: `HiPrimitive` refuses to be called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from gtrace.jax.extend.absent import absent_class, refuse
from gtrace.jax.interpreters.ad import Zero, instantiate_zeros, is_undefined_primal

__all__ = [
    "AbstractValue", "AvalMutableQDD", "AvalQDD", "HiPrimitive", "HiType", "MutableHiType", "QuasiDynamicData", "Ty",
    "VJPHiPrimitive", "Zero", "aval_method", "aval_property", "control_flow_allowed_effects", "instantiate_zeros",
    "is_undefined_primal", "register_hitype",
]  # fmt: skip

AbstractValue, AvalQDD, AvalMutableQDD = (
    absent_class("AbstractValue"),
    absent_class("AvalQDD"),
    absent_class("AvalMutableQDD"),
)
HiType, MutableHiType, Ty = absent_class("HiType"), absent_class("MutableHiType"), absent_class("Ty")
QuasiDynamicData, VJPHiPrimitive = absent_class("QuasiDynamicData"), absent_class("VJPHiPrimitive")


class HiPrimitive:
    """An operation of a program's own, which can be made and not used.

    Attributes:
        name: for errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Refuse.

        Raises:
            ArgumentError: always.
        """
        refuse(f"HiPrimitive {self.name!r}")


class _AllowedEffects:
    """The effects that loops and branches allow: a set that is not read."""

    def add_type(self, effect: type) -> None:
        """Do nothing."""


control_flow_allowed_effects = _AllowedEffects()


def aval_property(fget: Callable[..., Any]) -> property:
    """Return a property."""
    return property(fget)


def aval_method(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method."""
    return fun


def register_hitype(val_cls: type, typeof_fn: Callable[..., Any]) -> None:
    """Do nothing: values of the class are refused where they are made."""

"""Classes as pytree nodes: their children and their static data."""

from __future__ import annotations

import dataclasses
import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs
import optree

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.tree.keys import Keyed
from gtrace.core.base.tree.treedef import NAMESPACE

__all__ = [
    "Partial", "register", "register_dataclass", "register_immutable", "register_pytree_node",
    "register_pytree_node_class", "register_pytree_with_keys", "register_pytree_with_keys_class", "register_static",
    "static",
]  # fmt: skip

T = TypeVar("T", bound=type)
Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
Unflatten = Callable[[Any, tuple[Any, ...]], Any]


@attrs.frozen(eq=False, repr=False)
class _Static:
    """Static data of a node, compared by exact keys: in a structure, 1 is not True."""

    value: Any
    key: Any

    def __eq__(self, other: object) -> bool:
        return other.__class__ is _Static and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def _static(value: Any) -> Any:
    """Return static data wrapped so that == compares exact keys."""
    key = exact_key(value)
    return value if key is value else _Static(value, key)


def static_value(static: Any) -> Any:
    """Return the static data of a node as its class returned it."""
    return static.value if static.__class__ is _Static else static


class _Fixed:
    """The static fields of an immutable instance and their key, shared by all instances derived from it."""

    __slots__ = ("values", "key", "code")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.key = tuple([exact_key(value) for value in values.values()])
        self.code: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (other.__class__ is _Fixed and self.key == other.key)

    def __hash__(self) -> int:
        if self.code is None:
            self.code = hash(self.key)
        return self.code

    def __repr__(self) -> str:
        return repr(tuple(self.values.values()))

    def __reduce__(self) -> Any:
        return _Fixed, (self.values,)


def _register_fields(cls: Any, data: tuple[str, ...], meta: tuple[str, ...], make: Callable[..., Any]) -> None:
    """Register a class whose children are fields; `make` makes an instance of the values of all fields, by name."""

    def split(instance: Any) -> tuple[Any, ...]:
        static = tuple([_static(getattr(instance, name)) for name in meta])
        return tuple([getattr(instance, name) for name in data]), static, data

    def join(aux: Any, children: Any) -> Any:
        return make(**dict(zip((*data, *meta), (*children, *map(static_value, aux)), strict=True)))

    optree.register_pytree_node(cls, split, join, path_entry_type=optree.GetAttrEntry, namespace=NAMESPACE)


def register_immutable(cls: type) -> None:
    """Register an attrs class without slots whose instances never change. It works like `register`, but is faster.

    Static fields are read once from an instance, and kept beside its fields as ``_static``.

    >>> import attrs
    >>> @attrs.frozen(slots=False)
    ... class Point:
    ...     x: float
    ...     y: float
    >>> gt.tree.register_immutable(Point)
    >>> gt.tree.map(lambda value: 10 * value, Point(1, 2))
    Point(x=10, y=20)
    """
    kind: Any = cls
    fields = attrs.fields(kind)
    dynamic = tuple(field.name for field in fields if not field.metadata.get("static"))
    static = [field.name for field in fields if field.metadata.get("static")]
    take = operator.attrgetter(*dynamic) if len(dynamic) > 1 else lambda x: tuple(getattr(x, name) for name in dynamic)

    def split(instance: Any) -> tuple[tuple[Any, ...], _Fixed, tuple[str, ...]]:
        fixed = instance.__dict__.get("_static")
        if fixed is None:
            fixed = instance.__dict__["_static"] = _Fixed({name: getattr(instance, name) for name in static})
        return take(instance), fixed, dynamic

    def join(fixed: Any, children: Any) -> Any:
        instance = object.__new__(kind)
        own = instance.__dict__
        own.update(zip(dynamic, children, strict=True))
        own.update(fixed.values)
        own["_static"] = fixed
        return instance

    optree.register_pytree_node(kind, split, join, path_entry_type=optree.GetAttrEntry, namespace=NAMESPACE)


def register(cls: T) -> T:
    """Register an attrs class, a dataclass, or any class with ``tree_flatten`` and ``tree_unflatten`` as a pytree node.

    Every field of an attrs class or dataclass is a child, except those with ``metadata={"static": True}``, which are
    part of the structure. For other classes, ``tree_flatten(self)`` returns (children, aux data). The class method
    ``tree_unflatten(aux, children)`` rebuilds the instance. Returns the class, so it works as a decorator.

    Raises:
        ArgumentError: the class is of none of these kinds.

    >>> import attrs
    >>> @register
    ... @attrs.frozen
    ... class Layer:
    ...     w: float
    ...     name: str = attrs.field(default="dense", metadata={"static": True})
    >>> gt.tree.map(lambda leaf: leaf * 2, Layer(1.5))
    Layer(w=3.0, name='dense')
    """
    node: Any = cls
    if attrs.has(cls):
        fields = attrs.fields(cls)
        dynamic = tuple(field.name for field in fields if not field.metadata.get("static"))
        static = tuple(field.name for field in fields if field.metadata.get("static"))

        def make(**values: Any) -> Any:
            instance = object.__new__(cls)
            for name, value in values.items():
                object.__setattr__(instance, name, value)
            return instance

        _register_fields(cls, dynamic, static, make)
    elif dataclasses.is_dataclass(cls):
        register_dataclass(cls)
    elif hasattr(cls, "tree_flatten") and hasattr(cls, "tree_unflatten"):

        def flattened(instance: Any) -> tuple[Any, ...]:
            children, aux, *entries = instance.tree_flatten()
            return children, _static(aux), *entries

        def rebuilt(aux: Any, children: Any) -> Any:
            return node.tree_unflatten(static_value(aux), children)

        optree.register_pytree_node(node, flattened, rebuilt, namespace=NAMESPACE)
    else:
        raise ArgumentError(
            "[tree.register] expected an attrs class, a dataclass, or one with tree_flatten and tree_unflatten,"
            f" got {cls.__name__}."
            " Decorate it with attrs.frozen or define the two methods."
        )
    return cls


def _pair(nodetype: type, found: Any) -> Any:
    """Return what a class is flattened into: a tuple of children, and auxiliary data."""
    try:
        children, aux = found
        return tuple(children), aux
    except (TypeError, ValueError) as error:
        name, fix = f"flatten of {nodetype.__name__}", "Return a tuple of children, and what else there is."
        raise ArgumentError(message(name, "(children, auxiliary data)", repr(found), fix)) from error


def register_pytree_node(
    nodetype: type, flatten_func: Flatten, unflatten_func: Unflatten, flatten_with_keys_func: Flatten | None = None
) -> None:
    """Register a class as a pytree node.

    Args:
        flatten_func: returns (children, auxiliary data) of an instance; the data are hashable, and compared.
        unflatten_func: makes an instance of the auxiliary data and a tuple of children.
        flatten_with_keys_func: like `flatten_func`, with a pair (key, child) for each child.

    Raises:
        ValueError: the class is already registered.

    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda aux, children: Pair(*children))
    >>> optree.tree_leaves(Pair(1, 2), namespace="gtrace")
    [1, 2]
    """

    def flattened(instance: Any) -> tuple[Any, ...]:
        children, aux = _pair(nodetype, flatten_func(instance))
        return children, _static(aux)

    def keyed(instance: Any) -> tuple[Any, ...]:
        assert flatten_with_keys_func is not None
        pairs, aux = _pair(nodetype, flatten_with_keys_func(instance))
        keys, children = [], []
        for key, child in pairs:
            keys.append(key)
            children.append(child)
        return tuple(children), _static(aux), tuple(keys)

    def rebuilt(aux: Any, children: Any) -> Any:
        return unflatten_func(static_value(aux), tuple(children))

    node: Any = nodetype
    with warnings.catch_warnings():
        # optree treats a namedtuple as a node already; the user asked for another treatment
        warnings.filterwarnings("ignore", "PyTree type .* is a subclass of `collections.namedtuple`", UserWarning)
        if flatten_with_keys_func is None:
            optree.register_pytree_node(
                node, flattened, rebuilt, path_entry_type=optree.FlattenedEntry, namespace=NAMESPACE
            )
        else:
            optree.register_pytree_node(node, keyed, rebuilt, path_entry_type=Keyed, namespace=NAMESPACE)


def register_pytree_with_keys(
    nodetype: type, flatten_with_keys: Flatten, unflatten_func: Unflatten, flatten_func: Flatten | None = None
) -> None:
    """Register a class as a pytree node whose children have keys: see `register_pytree_node`.

    >>> class Pair:
    ...     def __init__(self, first, second):
    ...         self.both = first, second
    >>> gt.tree.register_pytree_with_keys(
    ...     Pair, lambda pair: (list(zip("ab", pair.both)), None), lambda aux, children: Pair(*children)
    ... )
    >>> gt.tree.paths(Pair(1, 2))
    ['a', 'b']
    """
    del flatten_func  # `flatten_with_keys` gives the same children
    register_pytree_node(nodetype, lambda _: ((), None), unflatten_func, flatten_with_keys)


def register_pytree_node_class(cls: T) -> T:
    """Register a class that has ``tree_flatten(self)`` and the class method ``tree_unflatten(aux, children)``.

    Returns:
        The class, so it works as a decorator.

    >>> @gt.tree.register_pytree_node_class
    ... class Pair:
    ...     def __init__(self, first, second):
    ...         self.both = first, second
    ...     def tree_flatten(self):
    ...         return self.both, None
    ...     @classmethod
    ...     def tree_unflatten(cls, aux, children):
    ...         return cls(*children)
    >>> gt.tree.map(lambda value: 10 * value, Pair(1, 2)).both
    (10, 20)
    """
    node: Any = cls
    register_pytree_node(cls, node.tree_flatten, node.tree_unflatten)
    return cls


def register_pytree_with_keys_class(cls: T) -> T:
    """Register a class that has ``tree_flatten_with_keys(self)`` and ``tree_unflatten(aux, children)``; returns it.

    >>> @gt.tree.register_pytree_with_keys_class
    ... class Pair:
    ...     def __init__(self, first, second):
    ...         self.both = first, second
    ...     def tree_flatten_with_keys(self):
    ...         return list(zip("ab", self.both)), None
    ...     @classmethod
    ...     def tree_unflatten(cls, aux, children):
    ...         return cls(*children)
    >>> gt.tree.paths(Pair(1, 2))
    ['a', 'b']
    """
    node: Any = cls
    register_pytree_node(cls, lambda _: ((), None), node.tree_unflatten, node.tree_flatten_with_keys)
    return cls


def register_dataclass(
    nodetype: Any = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Any:
    """Register a dataclass as a pytree node; usable as a decorator.

    Args:
        data_fields: the fields that are children; by default those without ``metadata={"static": True}``.
        meta_fields: the fields that are part of the structure, and hashable.
        drop_fields: fields that keep their defaults.

    Returns:
        The class.

    Raises:
        ArgumentError: it is not a dataclass, or its ``__init__`` takes other fields.

    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     w: float
    ...     name: str = dataclasses.field(default="dense", metadata={"static": True})
    >>> optree.tree_map(lambda leaf: leaf * 2, Layer(1.5), namespace="gtrace")
    Layer(w=3.0, name='dense')
    """
    if nodetype is None:
        return functools.partial(
            register_dataclass, data_fields=data_fields, meta_fields=meta_fields, drop_fields=drop_fields
        )
    known = [f for f in dataclasses.fields(nodetype) if f.init] if dataclasses.is_dataclass(nodetype) else None
    if data_fields is None or meta_fields is None:
        if known is None:
            fix = "Decorate it with dataclasses.dataclass first, or name data_fields and meta_fields."
            raise ArgumentError(message("tree.register_dataclass", "a dataclass", nodetype.__name__, fix))
        data_fields = [f.name for f in known if not f.metadata.get("static") and f.name not in drop_fields]
        meta_fields = [f.name for f in known if f.metadata.get("static") and f.name not in drop_fields]
    elif known is not None and {f.name for f in known} != {*data_fields, *meta_fields, *drop_fields}:
        got = f"{[*data_fields, *meta_fields, *drop_fields]} for {[f.name for f in known]}"
        raise ArgumentError(message("tree.register_dataclass", "each field once", got, "Name all fields."))
    both = sorted({*data_fields} & {*meta_fields})
    if both:
        got = f"{', '.join(both)} in data_fields and in meta_fields"
        raise ArgumentError(message("tree.register_dataclass", "each field once", got, "Name it in one of them."))
    _register_fields(nodetype, tuple(data_fields), tuple(meta_fields), nodetype)
    return nodetype


def static(**kwargs: Any) -> Any:
    """Return a dataclass field that is part of the structure; takes the arguments of ``dataclasses.field``.

    >>> import dataclasses
    >>> @gt.tree.register_dataclass
    ... @dataclasses.dataclass
    ... class Scaled:
    ...     value: float
    ...     power: int = gt.tree.static(default=2)
    >>> gt.tree.leaves(Scaled(3.0))
    [3.0]
    """
    return dataclasses.field(**{**kwargs, "metadata": {"static": True, **(kwargs.get("metadata") or {})}})


def register_static(cls: T) -> T:
    """Register a class whose instances have no leaves: they are part of the structure, compared by == and hash.

    Returns:
        The class, so it works as a decorator.

    >>> @gt.tree.register_static
    ... class Mode(str):
    ...     pass
    >>> gt.tree.leaves([Mode("train"), 1])
    [1]
    """
    register_pytree_node(cls, lambda instance: ((), instance), lambda instance, _: instance)
    return cls


class Partial(functools.partial[Any]):
    """``functools.partial`` as a pytree: its arguments are children, its function is part of the structure.

    The arguments of a ``functools.partial`` that is its function are no children.

    >>> add = gt.tree.Partial(max, 1)
    >>> gt.tree.leaves(add), add(5)
    ([1], 5)
    """

    def __new__(cls, function: Any, /, *args: Any, **kwargs: Any) -> Partial:
        if isinstance(function, functools.partial) and not isinstance(function, Partial):
            function = _Whole(function)  # `functools.partial` would take its arguments over
        return super().__new__(cls, function, *args, **kwargs)


class _Whole:
    """A ``functools.partial`` as a function."""

    def __init__(self, function: functools.partial[Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._function is (other._function if isinstance(other, _Whole) else other)

    def __hash__(self) -> int:
        return hash(self._function)

    def __repr__(self) -> str:
        return repr(self._function)


register_pytree_node(
    Partial,
    lambda partial: ((partial.args, partial.keywords), partial.func),
    lambda function, children: Partial(function, *children[0], **children[1]),
)

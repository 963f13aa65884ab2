"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves.

optree does the work, under the namespace "gtrace". As in JAX, None is an empty subtree and dicts are visited in
sorted key order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import optree

from gtrace.errors import ArgumentError
from gtrace.exact import exact_key

NAMESPACE = "gtrace"
T = TypeVar("T", bound=type)
TreeDef = optree.PyTreeSpec


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Return the leaves of `tree`, left to right, and its structure.

    >>> leaves, structure = flatten({"b": 2, "a": (1, None)})
    >>> leaves
    [1, 2]
    """
    return optree.tree_flatten(tree, namespace=NAMESPACE)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of `tree`, left to right."""
    return optree.tree_leaves(tree, namespace=NAMESPACE)


def structure(tree: Any) -> TreeDef:
    """Return the structure of `tree`."""
    return optree.tree_structure(tree, namespace=NAMESPACE)


def children(treedef: TreeDef) -> list[TreeDef]:
    """Return the structures right below the root of a structure."""
    return treedef.children()


def is_tuple(treedef: TreeDef) -> bool:
    """Whether the root of a structure is a plain tuple."""
    return treedef.type is tuple


def unflatten(treedef: TreeDef, values: Sequence[Any]) -> Any:
    """Rebuild a tree from its structure and leaves."""
    return optree.tree_unflatten(treedef, values)


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:  # noqa: A001 - the field's name, as in jax.tree.map
    """Apply `function` to each leaf of `tree` and the leaves at the same places of `rest`.

    Raises:
        ArgumentError: a tree of `rest` has another structure; the message names the key path.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 10})
    {'a': 11}
    """
    values, treedef = flatten(tree)
    columns = [values]
    for other in rest:
        try:
            columns.append(treedef.flatten_up_to(other))
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"[tree.map] expected trees of one structure, got a difference: {error}") from None
    return treedef.unflatten([function(*column) for column in zip(*columns, strict=True)])


def paths(tree: Any) -> list[str]:
    """Return the key path of each leaf as it would be written in Python.

    >>> paths({"layers": [1, 2]})
    ["['layers'][0]", "['layers'][1]"]
    """
    accessors = optree.tree_accessors(tree, namespace=NAMESPACE)
    return [accessor.codify("") for accessor in accessors]


def number_keys(treedef: TreeDef) -> tuple[Any, ...]:
    """Return the exact keys of dicts whose keys are not all strings; structures compare keys by ==, where 1 is True.

    >>> number_keys(structure({"a": 1, "b": {1: 0}})) == number_keys(structure({"a": 1, "b": {True: 0}}))
    False
    >>> number_keys(structure({"a": 1, "b": (2, 3)}))
    ()
    """
    found: list[Any] = []
    pending = [treedef]
    while pending:
        node = pending.pop()
        if node.type is not None and issubclass(node.type, dict):
            entries = node.entries()
            if any(entry.__class__ is not str for entry in entries):
                found.append(exact_key(tuple(entries)))
        pending += node.children()
    return tuple(found)


@attrs.frozen(eq=False, repr=False)
class _Static:
    """Static data of a node, compared by its exact key: in a structure, 1 is not True."""

    value: Any
    key: Any

    def __eq__(self, other: object) -> bool:
        return other.__class__ is _Static and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def _static(value: Any) -> Any:
    """Return static data in a form whose == is that of its exact key."""
    key = exact_key(value)
    return value if key is value else _Static(value, key)


def _value(static: Any) -> Any:
    return static.value if static.__class__ is _Static else static


def register(cls: T) -> T:
    """Register an attrs class (or any class with ``tree_flatten`` and ``tree_unflatten``) as a pytree node.

    For an attrs class every field is a child, except those with ``metadata={"static": True}``, which are part of the
    structure. For other classes ``tree_flatten(self)`` returns (children, aux data) and the class method
    ``tree_unflatten(aux, children)`` rebuilds. Returns the class, so it works as a decorator.

    Raises:
        ArgumentError: the class is neither.

    >>> import attrs
    >>> @register
    ... @attrs.frozen
    ... class Layer:
    ...     w: float
    ...     name: str = attrs.field(default="dense", metadata={"static": True})
    >>> map(lambda leaf: leaf * 2, Layer(1.5))
    Layer(w=3.0, name='dense')
    """
    node: Any = cls
    if attrs.has(cls):
        fields = attrs.fields(cls)
        dynamic = [field.name for field in fields if not field.metadata.get("static")]
        static = [field.name for field in fields if field.metadata.get("static")]

        def split(instance: Any) -> tuple[tuple[Any, ...], Any, tuple[str, ...]]:
            children = tuple(getattr(instance, name) for name in dynamic)
            return children, tuple([_static(getattr(instance, name)) for name in static]), tuple(dynamic)

        def join(aux: Any, children: Any) -> Any:
            instance = object.__new__(cls)
            for name, value in zip(dynamic + static, (*children, *[_value(x) for x in aux]), strict=True):
                object.__setattr__(instance, name, value)
            return instance

        optree.register_pytree_node(node, split, join, namespace=NAMESPACE)
    elif hasattr(cls, "tree_flatten") and hasattr(cls, "tree_unflatten"):

        def flattened(instance: Any) -> tuple[Any, ...]:
            children, aux, *entries = instance.tree_flatten()
            return children, _static(aux), *entries

        def rebuilt(aux: Any, children: Any) -> Any:
            return node.tree_unflatten(_value(aux), children)

        optree.register_pytree_node(node, flattened, rebuilt, namespace=NAMESPACE)
    else:
        raise ArgumentError(
            f"[tree.register] expected an attrs class or one with tree_flatten and tree_unflatten, got {cls.__name__}."
            " Decorate it with attrs.frozen or define the two methods."
        )
    return cls

"""The structures of pytrees as JAX's class shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import optree

from gtrace.extend import static_value, tree
from gtrace.tree import NAMESPACE


class PyTreeDef:
    """The structure of a pytree, under JAX's names and with JAX's text, over that of `gt.tree`, which it equals.

    >>> import gtrace.jax as jax
    >>> jax.tree.structure({"a": 1, "b": (2, None)})
    PyTreeDef({'a': *, 'b': (*, None)})
    """

    __slots__ = ("spec",)

    def __init__(self, spec: tree.TreeDef | PyTreeDef) -> None:
        self.spec: tree.TreeDef = spec_of(spec)

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return self.spec.num_leaves

    @property
    def num_nodes(self) -> int:
        """The number of nodes, leaves included."""
        return self.spec.num_nodes

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Return a tree of this structure with these leaves."""
        return self.spec.unflatten(leaves)

    def flatten_up_to(self, xs: Any) -> list[Any]:
        """Return the parts of a tree at the places of the leaves of this structure."""
        return self.spec.flatten_up_to(xs)

    def children(self) -> list[PyTreeDef]:
        """Return the structures right below the root."""
        return [PyTreeDef(child) for child in self.spec.children()]

    def compose(self, inner: PyTreeDef) -> PyTreeDef:
        """Return this structure with `inner` in place of each leaf."""
        return PyTreeDef(self.spec.compose(spec_of(inner)))

    def node_data(self) -> tuple[type, Any] | None:
        """Return the class of the root, and its static data; None for a leaf.

        >>> PyTreeDef(tree.structure({"a": 1})).node_data()
        (<class 'dict'>, ['a'])
        """
        spec = self.spec
        if spec.is_leaf():
            return None
        kind: Any = spec.type or type(None)
        if spec.kind in (optree.PyTreeKind.DICT, optree.PyTreeKind.ORDEREDDICT):
            return kind, list(spec.entries())
        if spec.kind is not optree.PyTreeKind.CUSTOM:
            return kind, None
        empty: Any = spec.unflatten([None] * spec.num_leaves)
        return kind, static_value(optree.tree_flatten_one_level(empty, namespace=NAMESPACE)[1])

    def walk(
        self, f_node: Callable[[Any, Any], Any], f_leaf: Callable[[Any], Any] | None, leaves: Iterable[Any]
    ) -> Any:
        """Combine leaves from below: ``f_leaf(leaf)``, then ``f_node(children, data)`` for each node."""
        given = iter(leaves)

        def visit(node: PyTreeDef) -> Any:
            data = node.node_data()
            if data is None:
                leaf = next(given)
                return leaf if f_leaf is None else f_leaf(leaf)
            return f_node(tuple([visit(child) for child in node.children()]), data[1])

        return visit(self)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, PyTreeDef):
            return self.spec == other.spec
        return self.spec == other if isinstance(other, optree.PyTreeSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"PyTreeDef({_text(self.spec)})"

    def __reduce__(self) -> Any:
        return PyTreeDef, (self.spec,)


def spec_of(structure: Any) -> Any:
    """Return a structure as `gt.tree` has it."""
    return structure.spec if isinstance(structure, PyTreeDef) else structure


_KIND = optree.PyTreeKind


def _text(spec: tree.TreeDef) -> str:
    if spec.is_leaf():
        return "*"
    inner = [_text(child) for child in spec.children()]
    items = ", ".join(inner)
    if spec.kind == _KIND.NONE:
        return "None"
    if spec.kind == _KIND.TUPLE:
        return f"({items},)" if len(inner) == 1 else f"({items})"
    if spec.kind == _KIND.LIST:
        return f"[{items}]"
    if spec.kind == _KIND.DICT:
        return "{" + ", ".join(f"{key!r}: {x}" for key, x in zip(spec.entries(), inner, strict=True)) + "}"
    return f"CustomNode({_root(spec)}, [{items}])"


def _root(spec: tree.TreeDef) -> str:
    """Return the class of a node and its static data, as text."""
    kind, level = spec.type, spec.one_level()
    assert kind is not None and level is not None
    if spec.kind == _KIND.NAMEDTUPLE:
        return f"namedtuple[{kind.__name__}]"
    if spec.kind == _KIND.ORDEREDDICT:
        return f"OrderedDict[{tuple(spec.entries())!r}]"
    if spec.kind == _KIND.DEFAULTDICT:
        empty: Any = level.unflatten([None] * spec.num_children)
        return f"defaultdict[{(empty.default_factory, tuple(spec.entries()))!r}]"
    if spec.kind != _KIND.CUSTOM:
        return kind.__name__
    # optree does not tell what a class keeps, but prints it
    whole = repr(level).removeprefix("PyTreeSpec(CustomTreeNode(")
    return whole[: whole.rindex(f", [{', '.join('*' * spec.num_children)}])")]

"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves.

optree does the work, under the namespace "gtrace". As in JAX, None is an empty subtree and dicts are visited in
sorted key order.
"""

from gtrace.core.base.tree import keys as _keys
from gtrace.core.base.tree import nodes as _nodes
from gtrace.core.base.tree import treedef as _treedef
from gtrace.core.base.tree.keys import *
from gtrace.core.base.tree.nodes import *
from gtrace.core.base.tree.treedef import *

__all__ = [*_keys.__all__, *_nodes.__all__, *_treedef.__all__]

"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves.

They use optree, with the namespace "gtrace". As in JAX, None is an empty subtree, and dicts have sorted keys.
"""

from gtrace.core.base.tree.keys import *
from gtrace.core.base.tree.nodes import *
from gtrace.core.base.tree.treedef import *

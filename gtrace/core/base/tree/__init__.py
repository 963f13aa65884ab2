"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves.

optree does the work, under the namespace "gtrace". As in JAX, None is an empty subtree and dicts are visited in
sorted key order.
"""

from gtrace.core.base.tree.keys import *
from gtrace.core.base.tree.nodes import *
from gtrace.core.base.tree.treedef import *

"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves."""

from gtrace.core.base.tree.keys import *
from gtrace.core.base.tree.nodes import *
from gtrace.core.base.tree.treedef import *

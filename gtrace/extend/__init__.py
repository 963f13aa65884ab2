"""What libraries over gtrace are built on, and whoever adds operations to it: docs/extend.md is the guide."""

from gtrace.extend.dtypes import *
from gtrace.extend.effects import *
from gtrace.extend.errors import *
from gtrace.extend.keys import *
from gtrace.extend.libraries import *
from gtrace.extend.operands import *
from gtrace.extend.operations import *
from gtrace.extend.public import *
from gtrace.extend.rules import *
from gtrace.extend.torch_calls import *
from gtrace.extend.tracing import *
from gtrace.extend.trees import *

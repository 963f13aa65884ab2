"""What the declaration of an operation is made of, for the families outside of core/.

These are the names of ``core/ir`` that the vocabulary needs. It reaches the rest of the machine by calling operations.
"""

from gtrace.core.ir.aval import Aval as Aval
from gtrace.core.ir.cases import BadSample as BadSample
from gtrace.core.ir.cases import Sample as Sample
from gtrace.core.ir.op import define as define
from gtrace.core.ir.wide_unsigned import ORDER as ORDER

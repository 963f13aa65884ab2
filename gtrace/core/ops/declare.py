"""Names that declare operations, for families outside of core/.

The families outside need these names of ``core/ir``. They use the rest of the machine by calling operations.
"""

from gtrace.core.ir.aval import Aval as Aval
from gtrace.core.ir.cases import BadSample as BadSample
from gtrace.core.ir.cases import Sample as Sample
from gtrace.core.ir.op import define as define
from gtrace.core.ir.wide_unsigned import ORDER as ORDER

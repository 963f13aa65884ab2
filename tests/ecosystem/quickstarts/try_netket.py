"""netket: the ground state of a chain of spins, exactly."""

import netket as nk
from parts import show

hilbert = nk.hilbert.Spin(0.5, 4)
ising = nk.operator.Ising(hilbert, nk.graph.Chain(4), h=1.0)
show("energy", nk.exact.lanczos_ed(ising, k=1))

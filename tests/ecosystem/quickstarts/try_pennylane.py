"""PennyLane: a circuit of two qubits and its gradient."""

import jax
import jax.numpy as jnp
import pennylane as qml
from parts import show


@qml.qnode(qml.device("default.qubit", wires=2), interface="jax")
def circuit(angles):
    qml.RX(angles[0], wires=0)
    qml.RY(angles[1], wires=1)
    qml.CNOT(wires=[0, 1])
    return qml.expval(qml.PauliZ(1))


angles = jnp.array([0.3, 0.7])
show("value", circuit(angles), jnp.cos(angles[0]) * jnp.cos(angles[1]))
show("gradient", jax.grad(circuit)(angles))

"""jaxley: cells with channels, simulated, differentiated and trained."""

import jax
import jax.numpy as jnp
import jaxley as jx
import optax
from jaxley.channels import HH, Leak
from jaxley.connect import connect
from jaxley.synapses import IonotropicSynapse
from parts import show

jax.config.update("jax_enable_x64", True)

branch = jx.Branch(jx.Compartment(), ncomp=2)
cell = jx.Cell(branch, parents=[-1, 0, 0])
cell.insert(HH())
cell.set("length", 20.0)
cell.set("axial_resistivity", 1_000.0)
current = jx.step_current(i_delay=1.0, i_dur=1.0, i_amp=0.2, delta_t=0.025, t_max=6.0)
cell.branch(0).loc(0.0).stimulate(current)
cell.branch(1).loc(1.0).record("v")
cell.branch(2).comp(0).record("HH_m")
show("stimulus", current[::20])
v = jx.integrate(cell, delta_t=0.025)
show("voltages", v.shape, v[:, ::20], v.max())
show("implicit solver", jx.integrate(cell, delta_t=0.025, solver="bwd_euler", voltage_solver="jaxley.dhs")[:, ::40])

cell.branch("all").make_trainable("HH_gNa")
parameters = cell.get_parameters()
show("parameters", *(value for entry in parameters for value in entry.values()))


def loss(params):
    return jnp.mean(jx.integrate(cell, params=params, delta_t=0.025, checkpoint_lengths=[16, 16])[0] ** 2)


value, grads = jax.jit(jax.value_and_grad(loss))(parameters)
show("gradient", value, *(g for entry in grads for g in entry.values()))

optimizer = optax.adam(0.01)
state, losses = optimizer.init(parameters), []
step = jax.jit(jax.value_and_grad(loss))
for _ in range(3):
    value, grads = step(parameters)
    updates, state = optimizer.update(grads, state)
    parameters = optax.apply_updates(parameters, updates)
    losses.append(value)
show("training", losses)

small = jx.Cell(jx.Branch(jx.Compartment(), ncomp=1), parents=[-1])
network = jx.Network([small for _ in range(3)])
connect(network.cell(0), network.cell(1), IonotropicSynapse())
connect(network.cell(1), network.cell(2), IonotropicSynapse())
network.insert(Leak())
network.cell(0).insert(HH())
network.set("IonotropicSynapse_gS", 5e-4)
network.cell(0).stimulate(current)
network.cell("all").branch(0).loc(0.5).record("v")
show("network", jx.integrate(network, delta_t=0.025)[:, ::40])


def batched(amplitude):
    stimuli = network.cell(2).data_stimulate(amplitude * jnp.ones(241))
    return jx.integrate(network, data_stimuli=stimuli, delta_t=0.025)[2, ::80]


show("batch", jax.jit(jax.vmap(batched))(jnp.array([0.0, 0.1, 0.2])))

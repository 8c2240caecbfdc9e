"""A task of lrtasks feeds JAX: a diagonal linear recurrence learns Cumsum: python generators_jax.py

The recurrence is h[t] = λ ⊙ h[t-1] + B x[t], its output C h[t] + D x[t]; all positions at once by an associative scan.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

import lrtasks

STATES, STEPS, RATE = 32, 150, 1e-2


def init(key, width: int, out: int) -> dict[str, jax.Array]:
    """Decays spread between 0.5 and 0.999, small random maps."""
    b, c = jax.random.split(key)
    decay = jnp.linspace(0.5, 0.999, STATES)
    return {
        "logit": jnp.log(decay / (1 - decay)),
        "B": jax.random.normal(b, (width, STATES)) / np.sqrt(STATES),
        "C": jax.random.normal(c, (STATES, out)) / np.sqrt(STATES),
        "D": jnp.zeros((width, out)),
    }


def apply(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """``(batch, length, width)`` to ``(batch, length, out)``."""
    u = x @ parameters["B"]
    decay = jnp.broadcast_to(jax.nn.sigmoid(parameters["logit"]), u.shape)

    def join(earlier, later):
        return earlier[0] * later[0], earlier[1] * later[0] + later[1]

    _, h = jax.lax.associative_scan(join, (decay, u), axis=1)
    return h @ parameters["C"] + x @ parameters["D"]


def loss(parameters: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((apply(parameters, x) - y) ** 2)


@jax.jit
def step(parameters, mean, square, count, x, y):
    """One step of Adam."""
    gradient = jax.grad(loss)(parameters, x, y)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, square, gradient)

    def move(p, m, s):
        return p - RATE * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.99**count)) + 1e-8)

    return jax.tree.map(move, parameters, mean, square), mean, square


task = lrtasks.make("cumsum", length=64)
parameters = init(jax.random.key(0), task.input.width, task.target.width)
mean = square = jax.tree.map(jnp.zeros_like, parameters)
for count, batch in enumerate(itertools.islice(task.stream(16, seed=0), STEPS), 1):
    parameters, mean, square = step(parameters, mean, square, count, batch.x, batch.y)

test = task.batch(range(500), seed=0, split="test")
(baseline,) = task.baselines().values()
baseline.fit([task.batch(range(2000))])
for name, prediction in (("recurrence", apply(parameters, test.x)), ("constant", baseline.predict(test))):
    print(f"{task.name}: R² {float(1 - np.mean((prediction - test.y) ** 2) / test.y.var()):.3f} ({name})")

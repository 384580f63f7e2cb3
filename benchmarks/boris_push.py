"""How fast is a Boris particle push as a batch of small products, compared with array expressions?

    python benchmarks/boris_push.py                                       # results/boris_push.json
    python benchmarks/boris_push.py --device cpu --particles 20000        # anywhere

A charged particle moves in a magnetic field b and an electric field e.  A step adds half of the push by e,
rotates the velocity, and adds the other half [1].  The rotation of a time step is a 3 x 3 matrix that depends
on the cell of the particle.  If the particles are sorted by cell, this matrix multiplies the 3 x p velocities
of the p particles in the cell.  So a step is one batch of products

    V[cell] = R[cell] (V[cell] + h e[cell]) + h e[cell].

h is the time step times the charge over twice the mass.  With t = h b and [t] the matrix of v -> t x v,
R = I + (-[t] + [t]^2) 2 / (1 + |t|^2).

Three checks: both ways agree; without e the speed of every particle is constant, because the step is a
rotation; in a uniform field a particle rotates by the angle 2 atan |t| per step.

[1] J. P. Boris, Relativistic plasma simulation - optimization of a hybrid code, 1970.
"""

import numpy as np
from _figures import beside_the_gpu
from _harness import RESULTS, arguments, gpu, host_seconds, machine, save, summary
from _steady import steady_seconds

from tcsolve import gemm_batched

PER_CELL = 64
STEP = 0.05  # time step times charge over twice the mass


def cross_matrix(t):
    """Return the matrices [t] with [t] v = t x v, (cells, 3, 3), for t (cells, 3)."""
    zero = 0 * t[:, 0]
    x, y, z = t.T
    rows = [[zero, -z, y], [z, zero, -x], [-y, x, zero]]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def rotations(b):
    """Return the rotation of one step in each cell, (cells, 3, 3)."""
    t = STEP * b
    cross = cross_matrix(t)
    return np.eye(3) + (-cross + cross @ cross) * (2 / (1 + (t**2).sum(axis=1)))[:, None, None]


def push_by_products(rotation, v, kick):
    """Return the velocities (cells, 3, p) after a step: one batch of 3 x 3 by 3 x p."""
    return gemm_batched(rotation, v + kick) + kick


def push_by_arrays(xp, b, v, kick):
    """Return the same from cross products of whole arrays, as particle codes write it."""
    t = (STEP * b)[:, :, None]
    s = 2 * t / (1 + (t**2).sum(axis=1, keepdims=True))
    minus = v + kick
    prime = minus + cross(xp, minus, t)
    return minus + cross(xp, prime, s) + kick


def cross(xp, a, b):
    """Return a x b along axis 1."""
    a0, a1, a2 = a[:, 0], a[:, 1], a[:, 2]
    b0, b1, b2 = b[:, 0], b[:, 1], b[:, 2]
    return xp.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=1)


def fields(xp, cells, seed=1):
    """Return b, the push by e in half a step (cells, 3, 1), rotations and velocities: FP32 arrays of xp."""
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((cells, 3))
    kick = 0.01 * rng.standard_normal((cells, 3, 1))
    v = rng.standard_normal((cells, 3, PER_CELL))
    rotation = np.ascontiguousarray(rotations(b))
    return [xp.asarray(x.astype(np.float32)) for x in (b, kick, rotation, v)]


def check(xp, cells=500, steps=200):
    """Do the three checks that the docstring of this module lists."""
    b, kick, rotation, v = fields(xp, cells)
    close = 50 * 2.0**-24
    size = float(xp.abs(v).max())
    gap = float(xp.abs(push_by_products(rotation, v, kick) - push_by_arrays(xp, b, v, kick)).max())
    assert gap <= close * size, f"the two ways differ by {gap:.1e}"

    speed, u = (v**2).sum(axis=1), v
    for _ in range(steps):
        u = push_by_products(rotation, u, 0 * kick)
    drift = float(xp.abs((u**2).sum(axis=1) / speed - 1).max())
    assert drift <= steps * 2 * close, f"speeds drift by {drift:.1e}"

    field = np.zeros((1, 3))
    field[0, 2] = 2.0
    turn = xp.asarray(rotations(field).astype(np.float32))
    u = xp.zeros((1, 3, 1), np.float32)
    u[0, 0, 0] = 1
    for _ in range(steps):
        u = push_by_products(turn, u, 0 * u)
    angle = -2 * steps * np.arctan(STEP * 2.0)
    found = np.array([float(u[0, 0, 0]), float(u[0, 1, 0])])
    gap = np.abs(found - [np.cos(angle), np.sin(angle)]).max()
    assert gap <= steps * 2 * close, f"the angle is off by {gap:.1e}"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--particles", type=int, default=4_000_000)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.set_defaults(json=RESULTS / "boris_push.json")
    options = parser.parse_args()
    beside_the_gpu(options)
    if options.device == "cuda":
        import cupy as xp
    else:
        xp = np
    check(xp)
    print("all checks passed")
    b, kick, rotation, v = fields(xp, max(1, options.particles // PER_CELL))
    runs = {
        "gemm_batched": lambda: push_by_products(rotation, v, kick),
        "arrays": lambda: push_by_arrays(xp, b, v, kick),
    }
    rows = []
    for name, run in runs.items():
        timed = steady_seconds if options.device == "cuda" else host_seconds
        seconds = summary(timed(run, options.repeats))
        rate = v.shape[0] * PER_CELL / seconds["median"]
        rows.append({"how": name, "particles": v.shape[0] * PER_CELL, "seconds": seconds})
        rows[-1]["particles_per_second"] = rate
        print(f"{name:13} {1e3 * seconds['median']:9.3f} ms  {rate:.2e} particles/s")
    facts = machine(options.commit) | (gpu() if options.device == "cuda" else {})
    save(options.json, facts, rows)


if __name__ == "__main__":
    main()

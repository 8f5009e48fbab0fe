"""Stars that attract each other, divided among MPI ranks: in every step the ranks tell each other the positions of
their stars.

The client makes the stars, starts the simulation and fetches the result; the ranks do the steps among themselves.
Run it with the number of engines: `python n_body.py 4`.
"""

import sys
from typing import Any

import broadleaf as ipp
import numpy as np

BODIES, STEPS, STEP = 400, 240, 0.01


def simulate(masses: Any, positions: Any, velocities: Any, steps: int, step: float) -> Any:
    """Takes `steps` steps with this rank's share of the bodies; returns positions and velocities of all of them."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    own = np.array_split(np.arange(len(masses)), world.size)[world.rank]
    counts = [2 * len(share) for share in np.array_split(np.arange(len(masses)), world.size)]
    positions, velocities = positions.copy(), velocities[own].copy()
    for _ in range(steps):
        away = positions[None] - positions[own][:, None]
        weight = masses / ((away**2).sum(-1) + 0.01) ** 1.5
        velocities += step * (weight[..., None] * away).sum(1)
        mine = positions[own] + step * velocities
        world.Allgatherv(mine, (positions, counts))
    everyones = np.empty_like(positions)
    world.Allgatherv(velocities, (everyones, counts))
    return positions, everyones


def alone(masses: Any, positions: Any, velocities: Any) -> Any:
    """The same in one process: the final positions of the bodies."""
    positions, velocities = positions.copy(), velocities.copy()
    for _ in range(STEPS):
        away = positions[None] - positions[:, None]
        weight = masses / ((away**2).sum(-1) + 0.01) ** 1.5
        velocities += STEP * (weight[..., None] * away).sum(1)
        positions += STEP * velocities
    return positions


def main(n: int, **options: Any) -> None:
    """Simulates on `n` engines, and compares the result with that of one process."""
    random = np.random.default_rng(0)
    masses = random.uniform(0.5, 1.5, BODIES) / BODIES
    positions, velocities = random.standard_normal((2, BODIES, 2))
    with ipp.Cluster(engines="mpi", n=n, **options) as rc:
        view = rc.broadcast_view(coalescing=True)
        results = view.apply_sync(simulate, masses, positions, velocities, STEPS, STEP)
        for found, speeds in results:
            assert np.allclose(found, alone(masses, positions, velocities))
            assert np.allclose(masses @ speeds, masses @ velocities), "momentum"
        print(
            f"{len(rc)} ranks, {STEPS} steps of {BODIES} bodies: momentum is kept, and the stars are where one process "
            "has them"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)

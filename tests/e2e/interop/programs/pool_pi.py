"""Pi by Monte Carlo, one random generator for each call."""

import random
from multiprocessing import Pool


def inside(seed):
    source = random.Random(seed)
    return sum(source.random() ** 2 + source.random() ** 2 < 1 for _ in range(20_000))


if __name__ == "__main__":
    with Pool(2) as pool:
        hits = sum(pool.map(inside, range(10)))
    print(f"pi is about {4 * hits / 200_000:.3f}")

"""Four engines, one map: start, compute, print the result and what it cost."""

import time

import broadleaf as ipp


def count_primes(start: int, stop: int) -> int:
    """How many primes lie in [start, stop), by trial division."""
    found = 0
    for n in range(max(start, 2), stop):
        if all(n % d for d in range(2, int(n**0.5) + 1)):
            found += 1
    return found


def main() -> None:
    chunk, limit = 2_000, 200_000
    starts = range(0, limit, chunk)
    begin = time.perf_counter()
    with ipp.Cluster(n=4) as rc:
        view = rc.load_balanced_view()
        ready = time.perf_counter()
        primes = sum(view.map_sync(count_primes, starts, [s + chunk for s in starts]))
        done = time.perf_counter()
        n = 10_000
        view.map_sync(abs, range(n), chunksize=1)
        small = time.perf_counter()
    print(f"4 engines ready in {ready - begin:.3f} s")
    print(f"primes below {limit:,}: {primes:,}, found in {done - ready:.3f} s as {len(starts)} tasks")
    print(f"{n:,} tasks that do nothing: {small - done:.3f} s, {n / (small - done):,.0f} tasks/s")


if __name__ == "__main__":
    main()

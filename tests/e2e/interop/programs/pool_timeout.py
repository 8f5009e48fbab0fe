"""A result that may take too long, as in the documentation of `multiprocessing`."""

import multiprocessing
import time
from multiprocessing import Pool


def f(x):
    return x * x


if __name__ == "__main__":
    with Pool(processes=2) as pool:
        print(pool.map(f, range(10)))
        print(sorted(pool.imap_unordered(f, range(10))))
        print(pool.apply_async(f, (20,)).get(timeout=60))
        slow = pool.apply_async(time.sleep, (30,))
        try:
            slow.get(timeout=0.2)
        except multiprocessing.TimeoutError:
            print("too slow")
        print(slow.ready())

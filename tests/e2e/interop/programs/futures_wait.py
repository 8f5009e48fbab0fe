"""The first of several futures, and the rest."""

import time
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures import ProcessPoolExecutor


def nap(seconds):
    time.sleep(seconds)
    return seconds


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as executor:
        futures = [executor.submit(nap, seconds) for seconds in (0.01, 2)]
        done, pending = wait(futures, return_when=FIRST_COMPLETED)
        print([future.result() for future in done], len(pending))
        done, pending = wait(futures)
        print(sorted(future.result() for future in done), len(pending))

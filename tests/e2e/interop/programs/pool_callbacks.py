"""Results and errors delivered to callbacks."""

from multiprocessing import Pool

done, failed = [], []


def root(n):
    if n < 0:
        raise ValueError(f"{n} has no root")
    return n**0.5


if __name__ == "__main__":
    pool = Pool(processes=2)
    for n in (4, -1, 9, 16, -5):
        pool.apply_async(root, (n,), callback=done.append, error_callback=failed.append)
    pool.close()
    pool.join()
    print(sorted(done))
    print(sorted(map(str, failed)))

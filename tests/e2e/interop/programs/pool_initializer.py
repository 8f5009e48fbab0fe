"""A table that each process loads once."""

from multiprocessing import Pool

table = None


def load(size):
    global table
    table = {n: n * n for n in range(size)}


def look_up(n):
    return table[n]


if __name__ == "__main__":
    with Pool(2, initializer=load, initargs=(1000,)) as pool:
        print(sum(pool.imap_unordered(look_up, range(1000), chunksize=50)))

"""Word counts of lines from a generator, in chunks."""

from collections import Counter
from multiprocessing import Pool

TEXT = "the leaf falls\nthe root stays\nthe leaf turns red\n" * 50


def lines():
    yield from TEXT.splitlines()


def count(line):
    return Counter(line.split())


if __name__ == "__main__":
    total = Counter()
    with Pool(2) as pool:
        for counted in pool.imap(count, lines(), chunksize=20):
            total += counted
    print(total.most_common(3))

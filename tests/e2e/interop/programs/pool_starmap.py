"""A comparison of every pair of words."""

from itertools import combinations
from multiprocessing import Pool

WORDS = ["tree", "leaf", "root", "bark", "reef"]


def common(first, second):
    return len(set(first) & set(second))


def main():
    pairs = list(combinations(WORDS, 2))
    with Pool(2) as pool:
        scores = pool.starmap(common, pairs, chunksize=3)
    for pair, score in zip(pairs, scores):
        if score > 1:
            print(*pair, score)


if __name__ == "__main__":
    main()

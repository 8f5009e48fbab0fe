"""A long map of short calls, in chunks, over two iterables."""

from concurrent.futures import ProcessPoolExecutor


def main():
    with ProcessPoolExecutor(2) as executor:
        powers = executor.map(pow, range(2000), [3] * 2000, chunksize=100)
        print(sum(powers))


if __name__ == "__main__":
    main()

"""Progress of an unordered map."""

from multiprocessing import Pool


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


if __name__ == "__main__":
    items = range(1, 401)
    longest = 0
    with Pool(2) as pool:
        for number, steps in enumerate(pool.imap_unordered(collatz, items), 1):
            longest = max(longest, steps)
            if number % 100 == 0:
                print(f"{number} of {len(items)}")
    print("longest:", longest)

"""Primes, as in the documentation of `concurrent.futures`."""

import math
from concurrent.futures import ProcessPoolExecutor

NUMBERS = [112272535095293, 112582705942171, 115280095190773, 1099726899285419, 17, 1_000_033 * 7]


def is_prime(n):
    if n < 2 or (n > 2 and n % 2 == 0):
        return False
    return all(n % i for i in range(3, math.isqrt(n // 10_000) + 1, 2))


def main():
    with ProcessPoolExecutor(2) as executor:
        for number, prime in zip(NUMBERS, executor.map(is_prime, NUMBERS)):
            print(f"{number} has {'no small factor' if prime else 'a small factor'}")


if __name__ == "__main__":
    main()

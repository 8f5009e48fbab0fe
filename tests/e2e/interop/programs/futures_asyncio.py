"""Executor calls that are awaited with `asyncio`."""

import asyncio
from concurrent.futures import ProcessPoolExecutor


def digits(n):
    return len(str(2**n))


async def main():
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(2) as executor:
        calls = [loop.run_in_executor(executor, digits, n) for n in (10, 100, 1000)]
        print(await asyncio.gather(*calls))


if __name__ == "__main__":
    asyncio.run(main())

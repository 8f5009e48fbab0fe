"""Futures as they complete, including some that fail."""

import concurrent.futures
from concurrent.futures import ProcessPoolExecutor


def parse(text):
    return int(text, 16)


if __name__ == "__main__":
    with ProcessPoolExecutor(max_workers=2) as executor:
        texts = {executor.submit(parse, text): text for text in ("ff", "10", "xyz", "a0")}
        lines = []
        for future in concurrent.futures.as_completed(texts):
            try:
                lines.append(f"{texts[future]} is {future.result()}")
            except ValueError as error:
                lines.append(f"{texts[future]}: {error}")
    print(*sorted(lines), sep="\n")

"""A small service: takes orders, adds them up, writes them down, and logs what it does.

It reports the processor time per order, which other programs disturb less than elapsed time.
"""

import argparse
import json
import logging
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--tasks", type=int, default=10_000, help="orders to take")
parser.add_argument("--batch", type=int, default=1, help="orders per write")
parser.add_argument("--no-log", action="store_true", help="log warnings only")
parser.add_argument("--no-lines", action="store_true", help="no log lines in the loop")
parser.add_argument("--lazy", action="store_true", help="format a line only if it will be written")
parser.add_argument("--buffered", action="store_true", help="do not flush after every line")
options = parser.parse_args()

with tempfile.TemporaryDirectory() as folder, open(f"{folder}/orders", "wb", buffering=0) as out:
    handler = logging.FileHandler(f"{folder}/log")
    if options.buffered:
        handler.flush = lambda: None
    log = logging.getLogger("orders")
    log.addHandler(handler)
    log.setLevel(logging.WARNING if options.no_log else logging.DEBUG)

    begin = time.process_time()
    waiting = []
    for number in range(options.tasks):
        order = {"number": number, "items": [{"price": 3 + i, "pieces": 1 + i} for i in range(8)]}
        order["total"] = sum(item["price"] * item["pieces"] for item in order["items"])
        if not options.no_lines:
            if options.lazy:
                log.debug("order %d: %r", number, order)
            else:
                log.debug(f"order {number}: {order!r}")
        waiting.append(json.dumps(order))
        if len(waiting) == options.batch:
            out.write("\n".join(waiting).encode())
            waiting.clear()
    total_s = time.process_time() - begin

print(json.dumps({"time_per_task_us": total_s / options.tasks * 1e6}))

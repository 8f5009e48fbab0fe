"""Writes orders into a SQLite database, with the settings that the study varies, and prints the time per order."""

import argparse
import json
import sqlite3
import tempfile
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--orders", type=int, default=2000)
parser.add_argument("--journal", choices=["delete", "truncate", "wal"], default="delete")
parser.add_argument("--synchronous", choices=["full", "normal", "off"], default="full")
parser.add_argument("--page-size", type=int, default=4096)
parser.add_argument("--batch", type=int, default=1, help="orders in a transaction")
parser.add_argument("--index", action="store_true", help="an index of the customers")
options = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    database = sqlite3.connect(Path(folder) / "orders.db", isolation_level=None)
    for name in ("page_size", "journal", "synchronous"):
        pragma = {"journal": "journal_mode"}.get(name, name)
        database.execute(f"PRAGMA {pragma} = {getattr(options, name)}")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
    if options.index:
        database.execute("CREATE INDEX of_customer ON orders (customer)")
    begin = time.perf_counter()
    for first in range(0, options.orders, options.batch):
        database.execute("BEGIN")
        for number in range(first, min(first + options.batch, options.orders)):
            database.execute("INSERT INTO orders (customer, cents) VALUES (?, ?)", (f"customer {number % 997}", number))
        database.execute("COMMIT")
    total_s = time.perf_counter() - begin
    database.close()

print(json.dumps({"time_per_task_us": total_s / options.orders * 1e6}))

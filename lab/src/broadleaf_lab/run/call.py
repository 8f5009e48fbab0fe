"""Calls a benchmark function in a fresh process: started as a script with a file that says which function, and how.

It prints a line of JSON: `n_tasks`, and in `iterations`, for each call, `total_s` and what the function returned, a
number of seconds per task or a dict of fields. Only the standard library: it runs under the interpreter that is
measured.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast


def find(call: dict[str, Any]) -> Callable[..., Any]:
    """The function."""
    # Otherwise the script's own directory would come first, and its modules must not be imported.
    sys.path[:1] = call["path"]
    module_name, _, name = call["function"].partition(":")
    if "file" in call:
        spec = importlib.util.spec_from_file_location("lab_benchmark", call["file"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["lab_benchmark"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    function: Any = module
    for part in (name or "run").split("."):
        function = getattr(function, part)
    return cast("Callable[..., Any]", function)


def main() -> None:
    with open(sys.argv[1]) as f:
        call = json.load(f)
    function = find(call)
    keywords = dict(call["keywords"])
    parameters = inspect.signature(function).parameters.values()
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
    n_tasks = 1
    if any_name or any(p.name == "n_tasks" for p in parameters):
        n_tasks = keywords["n_tasks"] = call["n_tasks"]
    iterations = []
    for _ in range(call["iterations"]):
        begin = time.perf_counter()
        returned = function(**keywords)
        fields = {"total_s": time.perf_counter() - begin}
        if isinstance(returned, dict):
            fields.update(returned)
        elif returned is not None:
            fields["time_per_task_us"] = float(returned) * 1e6
        iterations.append(fields)
    # On a line of its own, whatever the function printed.
    print("\n" + json.dumps({"n_tasks": n_tasks, "iterations": iterations}))


if __name__ == "__main__":
    main()

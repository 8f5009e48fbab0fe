"""`python -m broadleaf.engine`: an engine in an interpreter of its own.

The fork server starts it under ``engine_start=spawn`` and passes its setup on standard input. You can also start it by
hand with the path of an ``engine.json``. Any other arguments are those of `ipengine`.
"""

import json
import os
import sys
from typing import Any

from broadleaf import _native, standard_descriptors
from broadleaf.engine import environment
from broadleaf.engine.process import Capture
from broadleaf.extensions import extension
from broadleaf.serialize.search_path import extend_search_path
from broadleaf.text import os_text_from_json


def main() -> int:
    """Entry point; returns the process's exit code."""
    capture: Capture | None = None
    if sys.argv[1:] == ["--setup-from-stdin"]:
        setup: dict[str, Any] = json.load(sys.stdin)
        from broadleaf.engine import process

        process.reset_signals(process.signals_with_handlers())
        process.die_with_parent(setup["parent_pid"])
        if setup["capture"]:
            capture = Capture(**setup["capture"])
            for descriptor in capture.numbers():
                os.set_inheritable(descriptor, False)
        connection, engine_id, options = _native.hold_key(setup.pop("connection")), setup["engine_id"], setup["options"]
        environment.preload(options["preload"])
        process.redirect_output(os.dup(1), capture)  # until here, standard error is the log
    elif len(sys.argv) == 2 and os.path.exists(sys.argv[1]):
        with open(sys.argv[1]) as file:
            text = file.read()
        standard_descriptors.occupy()
        environment.start_again_with(environment.variables_of(json.loads(text)))
        connection = _native.hold_key(text)
        del text  # tasks can see this frame, and no key may be in it
        told = json.loads(connection)
        engine_id, options = None, told["options"]
        extend_search_path(map(os_text_from_json, told["search_path"]))
        environment.work_in(os_text_from_json(told["directory"] or ""))
        # How many engines share this host, nobody knows.
        environment.prepare(options["threads_per_engine"], len(os.sched_getaffinity(0)), dict(os.environ))
        environment.preload(options["preload"])
    else:
        return int(extension("ipengine")(sys.argv[1:]) or 0)
    from broadleaf.engine.main import run_engine

    return run_engine(connection, engine_id, options, capture)


def run() -> None:
    """Runs `main` and exits as a forked engine does: threads that tasks left running do not keep the process alive."""
    os._exit(main())


if __name__ == "__main__":
    run()

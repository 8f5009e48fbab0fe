"""The fork server: forks the node, then forks engines for it.

It is started with its configuration on standard input (it holds private keys, so it must not be seen in the process
list or be inherited): the first line is the node's, in the form `_native.run_node` takes, the second is that of this
server. Until the node is forked only the native module is imported, so that the node carries almost no Python.
"""

import os
import sys

from broadleaf import _native

_FAILED_CODE = 70  # EX_SOFTWARE


def main() -> None:
    """Entry point; the arguments are the descriptors that the launcher passes down."""
    ready_write, node_ready_read, node_ready_write, lifeline_read = map(int, sys.argv[1:5])
    node_config, host_config = _read_all(0).decode().split("\n")
    try:
        node_pid = os.fork()
    except OSError as error:
        _say_why_not_started(error, ready_write)
        os._exit(_FAILED_CODE)
    if node_pid == 0:
        os.close(ready_write)
        os.close(node_ready_read)
        _run_node(node_config)
    os.close(node_ready_write)
    if lifeline_read >= 0:
        os.close(lifeline_read)
    from broadleaf.engine.fork_service import serve
    from broadleaf.engine.process import HostConfig

    config = HostConfig.from_json(host_config)
    # Engines are forked from this frame, and their tasks can see it: no key may be in it.
    del node_config, host_config
    os._exit(serve(config, node_pid, ready_write, node_ready_read))


def _say_why_not_started(error: OSError, ready_write: int) -> None:
    import json

    from broadleaf.errors.os_limits import explained

    reason = f"its node could not be started: {explained(error)}"
    os.write(ready_write, json.dumps({"error": reason, "exit_code": _FAILED_CODE}).encode() + b"\n")


def _run_node(config: str) -> None:
    code = _FAILED_CODE  # if the native part raises
    try:
        _raise_descriptor_limit()
        os.umask(0o077)  # for the log that `log_sink` names; tasks never run here
        code = _native.run_node(config)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def _raise_descriptor_limit() -> None:
    """A node holds a few descriptors per engine and per shared segment; the soft limit is often 1024."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()

"""Runs tests of IPython Parallel's own suite on Broadleaf, and reports the outcome of each.

    python tests/peers/run.py IDS [OUT]

IDS is a file of ids (`test_view.py::TestView::test_len`, one a line, `#` for comments). OUT, by default
`bench-results/peer-tests`, gets `report.txt`, `results.jsonl`, and the output of each pytest process. Exits with 1
unless all pass. Each module of the suite runs in a process of its own. A test that takes longer than 30 s fails. A
process that is silent for 100 s is killed, and the rest of its module continues in a new one, as when it dies.

A test that fails is tried once more, and the report says so: some of the suite's tests compare times of tenths of a
second, which a busy machine does not keep.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import layout

TEST_TIMEOUT_S, SILENCE_S, GRACE_S = 30, 100, 15
PASSED = ("passed", "xpassed")
_RUN = uuid.uuid4().hex


def environment(tests: Path, events: Path) -> dict[str, str]:
    paths = (layout.HERE / "shim", tests.parent, layout.HERE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BROADLEAF_", "IPP_", "PYTEST_"))}
    if (mark := os.environ.get("BROADLEAF_CI_RUN")) is not None:
        kept["BROADLEAF_CI_RUN"] = mark
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PEER_EVENTS": str(events),
        "PEER_RUN": _RUN,
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "agg",
    }


def compile_matplotlib() -> None:
    """Has its bytecode written, if it is installed: without it, engines import it for longer than its test waits."""
    writes = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    imports = "import pylab, matplotlib_inline.backend_inline, IPython.core.pylabtools"
    subprocess.run([sys.executable, "-c", imports], env=writes, stderr=subprocess.DEVNULL, check=False)


def end_leaked() -> list[str]:
    """Ends the remaining processes of this run after a while; returns their command lines."""
    deadline = time.monotonic() + GRACE_S
    while (left := _processes()) and time.monotonic() < deadline:
        time.sleep(0.25)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return list(left.values())


def _processes() -> dict[int, str]:
    """Command lines of the processes of this run, by number."""
    found = {}
    mark = f"PEER_RUN={_RUN}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
    return found


def run_module(tests: Path, name: str, ids: list[str], out: Path) -> dict[str, dict[str, Any]]:
    """The outcome of each id of one module."""
    results: dict[str, dict[str, Any]] = {}
    rounds = 0
    while left := [test for test in ids if test not in results]:
        rounds += 1
        stem = out / f"{name.removesuffix('.py')}.{rounds}"
        results |= run_process(tests, left, Path(f"{stem}.events.jsonl"), Path(f"{stem}.log"))
    return results


def run_process(tests: Path, ids: list[str], events: Path, log: Path) -> dict[str, dict[str, Any]]:
    """The outcome of the ids that one pytest process reached; of all, if it reached none."""
    events.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "event_plugin", "-p", "no:cacheprovider", "-q"]
    command += [f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal", f"--rootdir={tests}", *ids]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=tests, env=environment(tests, events), stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        hung = _watch(process, events)
    leaked = end_leaked()
    results, started = _read(events)
    if started is not None:
        results[started] = {"status": "hung" if hung else "crashed", "text": log.read_text(errors="replace")[-1500:]}
    if leaked and results:
        results[list(results)[-1]] = {"status": "failed", "text": f"processes left behind: {leaked}"}
    return results or {test: {"status": "not run", "text": log.read_text(errors="replace")[-1500:]} for test in ids}


def _watch(process: subprocess.Popen[bytes], events: Path) -> bool:
    """Waits for a process; returns whether it had to be killed because it no longer did anything."""
    size, changed = -1, time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        now = events.stat().st_size if events.exists() else 0
        if now != size:
            size, changed = now, time.monotonic()
        elif time.monotonic() - changed > SILENCE_S:
            process.kill()
            process.wait()
            return True
    return False


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Results by id, and the id of a test that was started and never ended."""
    phases: dict[str, list[dict[str, Any]]] = defaultdict(list)
    finished, started = [], None
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        event = json.loads(line)
        match event["event"]:
            case "start":
                started = event["id"]
            case "phase":
                phases[event["id"]].append(event)
            case "finish":
                finished.append(event["id"])
                started = None
    return {test: judge(phases[test]) for test in finished}, started


def judge(phases: list[dict[str, Any]]) -> dict[str, Any]:
    """Status and text of a test. One that its own tear-down skips has passed, as pytest counts it."""
    for phase in phases:
        if phase["outcome"] == "failed":
            return {"status": "failed", "text": phase["text"] + phase["stderr"]}
        if phase["outcome"] == "skipped" and phase["phase"] != "teardown":
            return {"status": "skipped" if phase["xfail"] is None else "xfailed", "text": phase["text"]}
    return {"status": "xpassed" if any(phase["xfail"] is not None for phase in phases) else "passed", "text": ""}


def read_ids(path: Path) -> list[str]:
    """The ids of a file."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def report(ids: list[str], results: dict[str, dict[str, Any]], seconds: float) -> str:
    """Counts, and each id that did not pass with the end of its failure."""
    lines = [f"{len(ids)} tests of IPython Parallel, {seconds:.0f} s"]
    for test in ids:
        if results[test]["status"] not in PASSED or results[test].get("again"):
            lines += ["", f"{results[test]['status']}{' at the second try' * ('again' in results[test])}: {test}"]
            lines += [f"    {line}" for line in results[test]["text"].strip().splitlines()[-12:]]
    counts = Counter(results[test]["status"] for test in ids)
    passed = sum(counts[status] for status in PASSED)
    lines += ["", f"{passed} passed, {len(ids) - passed} failed"]
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    # If it was started in a shell's background, this process would make its engines inherit that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ids = read_ids(Path(sys.argv[1]))
    out = Path(sys.argv[2] if len(sys.argv) == 3 else layout.ROOT / "bench-results" / "peer-tests").resolve()
    layout.link_package()
    compile_matplotlib()
    tests = layout.lay_out(out / "layout")
    began = time.monotonic()
    results: dict[str, dict[str, Any]] = {}
    again = out / "again"
    again.mkdir(exist_ok=True)
    for name in dict.fromkeys(test.partition("::")[0] for test in ids):
        found = run_module(tests, name, [test for test in ids if test.startswith(f"{name}::")], out)
        failed = [test for test, result in found.items() if result["status"] not in PASSED]
        for test, result in run_module(tests, name, failed, again).items():
            first = f"at the first try: {found[test]['status']}\n{found[test]['text']}"
            found[test] = result | {"again": True, "text": result["text"] or first}
        results |= found
    with (out / "results.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": test} | results[test]) + "\n" for test in ids)
    text = report(ids, results, time.monotonic() - began)
    (out / "report.txt").write_text(text + "\n")
    print(text)
    return int(any(results[test]["status"] not in PASSED for test in ids))


if __name__ == "__main__":
    sys.exit(main())

"""What each benchmark runs: which steps, with how many workers, how often. Definitions: docs/benchmarks.md."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

SLEEPS_MS = [1, 2, 4, 8, 16, 32, 64, 128]
ECHO_SIZES = [(1_000, 100), (10_000, 100), (100_000, 100), (1_000_000, 100), (10_000_000, 20)]
MB = 1_000_000


@dataclass(frozen=True)
class Step:
    """One measurement. `params` go into its record; `arguments` are only for the measurement."""

    case: str
    params: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    #: Its name in the record, if it is not the measurement's name.
    recorded_as: str = ""
    #: Maximum duration, in seconds; None for the usual limit.
    timeout_s: float | None = None
    #: Uses only the first mode of a system.
    first_mode_only: bool = False

    @property
    def name(self) -> str:
        return self.recorded_as or self.case


@dataclass(frozen=True)
class Session:
    """Steps that share one start of a system with this many workers."""

    workers: int
    steps: list[Step]
    repeats: int
    only_ours: bool = False


@dataclass(frozen=True)
class Case:
    """A benchmark: sessions of every system, and the bare machine's figures in the same rounds."""

    name: str
    meaning: str
    sessions: Callable[[int, int, bool], list[Session]]
    raw: Callable[[bool], list[Step]] = lambda quick: []
    only_ours: bool = False
    #: Whether one of its figures is the time until every worker has run a task.
    times_start: bool = False
    #: Metric, and a step and metric of the bare system: what the former takes beyond the latter is a figure, too.
    floor: tuple[str, str, str] | None = None
    #: Whether every measurement sends arrays.
    needs_numpy: bool = False


def rtt_steps(quick: bool) -> list[Step]:
    calls = 300 if quick else 3000
    return [Step("raw_rtt", {"kind": kind}, {"calls": calls, "warmup": 100}) for kind in ("unix", "tcp")]


def latency(workers: int, repeats: int, quick: bool) -> list[Session]:
    return [Session(workers, [Step("latency", {}, {"calls": 50 if quick else 300, "warmup": 50})], repeats)]


def throughput(workers: int, repeats: int, quick: bool) -> list[Session]:
    sizes = [100, 1_000] if quick else [100, 1_000, 5_000, 100_000]
    steps = [Step("throughput", {"n": n}, {"warmup": 1_000}) for n in sizes]
    fewer = [Session(max(1, workers // 2), [s for s in steps if s.params["n"] == 5_000], repeats)]
    return [Session(workers, steps, repeats), *([] if quick else fewer)]


def map_(workers: int, repeats: int, quick: bool) -> list[Session]:
    n = 10_000 if quick else 1_000_000
    return [Session(workers, [Step("map", {"n": n}, {"warmup": 10_000})], repeats)]


def sleep_map(workers: int, repeats: int, quick: bool) -> list[Session]:
    n = 40 if quick else 400
    sleeps = [1, 8] if quick else SLEEPS_MS
    steps = [Step("sleep-map", {"n": n, "ms": ms}, {"workers": workers, "warmup": 10 * workers}) for ms in sleeps]
    # The long task comes early, so that any delay of the tasks queued behind it shows.
    late = {"n": 100 if quick else 1_000, "ms": 1, "straggler_s": 0.5 if quick else 2.0}
    steps.append(Step("straggler", late, {"position": 10, "warmup": 10 * workers}))
    return [Session(workers, steps, repeats)]


def sleep_raw(quick: bool) -> list[Step]:
    return [Step("raw_sleep", {"ms": ms}, {"n": 10 if quick else 40}) for ms in ([1, 8] if quick else SLEEPS_MS)]


def echo(workers: int, repeats: int, quick: bool) -> list[Session]:
    sizes = [(1_000, 20), (1_000_000, 20)] if quick else ECHO_SIZES
    steps = [Step("echo", {"size_bytes": size, "n": n}, {"warmup": 3}) for size, n in sizes]
    steps.append(Step("send", {"size_bytes": 4 * MB, "n": 10 if quick else 100}, {"warmup": 1}))
    return [Session(workers, steps, repeats)]


def echo_raw(quick: bool) -> list[Step]:
    return [Step("raw_memcpy_many", {"size_bytes": 4 * MB, "n": 10 if quick else 100}, {})]


# As many bytes as some limit was at, and a little more and less.
SIZES_KB = (1, 4, 10, 16, 20, 64, 100, 300, 1_000, 2_000, 3_900, 4_300, 16_000, 64_000)
# Kinds, the sizes that there are of each, in kB, and the module that has it. Pickling more dicts takes seconds.
KINDS: dict[str, tuple[int, int, str]] = {
    "array": (1, 64_000, "numpy"),
    "bytes": (1, 64_000, "numpy"),
    "str": (1, 64_000, "numpy"),
    "list of dicts": (1, 16_000, "numpy"),
    "forest": (4, 16_000, "sklearn"),
    "frame": (1, 16_000, "pandas"),
}
# With the number of values in a call.
ROUTES = {"apply": 1, "send": 1, "push": 1, "pull": 1, "map": 4, "scatter": 4}
TO_ALL = ("send", "push")


def sizes_steps(routes: Iterable[str], quick: bool) -> list[Step]:
    def step(kind: str, size_bytes: int, route: str) -> Step:
        n = ROUTES[route]
        calls = 2 if quick else max(3, min(50, 4 * MB // size_bytes // n))
        params = {"value": kind, "route": route, "size_bytes": size_bytes}
        return Step("sizes", params, {"n": n, "calls": calls, "warmup": 2 if calls > 3 else 1})

    return [
        step(kind, size_kb * 1000, route)
        for kind, (smallest_kb, largest_kb, module) in KINDS.items()
        if importlib.util.find_spec(module)
        for size_kb in ((1, 100, 1_000) if quick else SIZES_KB)
        if smallest_kb <= size_kb <= largest_kb
        for route in routes
    ]


def sizes(workers: int, repeats: int, quick: bool) -> list[Session]:
    to_all = Session(workers if quick else 16, sizes_steps(TO_ALL, quick), repeats, only_ours=True)
    return [Session(1, sizes_steps(ROUTES, quick), repeats), to_all]


def sizes_raw(quick: bool) -> list[Step]:
    return sizes_steps(ROUTES, quick)


def startup(workers: int, repeats: int, quick: bool) -> list[Session]:
    sizes = [workers] if quick else [4, 16, 100]
    return [Session(n, [], repeats if n < 100 else min(repeats, 3)) for n in sizes]


def memory(workers: int, repeats: int, quick: bool) -> list[Session]:
    sizes = [workers] if quick else [4, 100]
    step = Step("memory", {}, {"settle_s": 0.2 if quick else 1.0})
    return [Session(n, [step], repeats if n < 100 else 1) for n in sizes]


SCALE = (4, 100, 400, 1_000)


def scale(workers: int, repeats: int, quick: bool) -> list[Session]:
    steps = [
        Step("latency", {}, {"calls": 50 if quick else 500, "warmup": 50}, first_mode_only=True),
        Step("throughput", {"n": 200 if quick else 20_000}, {"warmup": 2_000}, first_mode_only=True),
        Step("fan-out", {}, {"calls": 5 if quick else 30, "warmup": 5}, first_mode_only=True),
        Step("memory", {}, {"settle_s": 0.0}),
        # The first seconds go to what the work before has left, such as memory that is released once it is old enough.
        Step("idle", {}, {"settle_s": 0.5 if quick else 8.0, "seconds": 1.0 if quick else 5.0}, "scale"),
    ]
    numbers = [workers, 2 * workers] if quick else SCALE
    return [Session(n, steps, repeats if n < 400 else min(repeats, 3), only_ours=True) for n in numbers]


def overhead(workers: int, repeats: int, quick: bool) -> list[Session]:
    # Many short runs, so that disturbances of the machine affect both halves of a pair alike. (While other programs
    # ran, 8 s of pairs of 1,000 tasks gave +-2.3 %, of 5,000 tasks +-8 %.)
    n, seconds = 1_000, 1.0 if quick else 10.0
    steps = [Step("overhead", {"of": of, "n": n}, {"seconds": seconds, "warmup": n}) for of in ("log", "tls")]
    return [Session(workers, steps, repeats)]


def bounded(workers: int, repeats: int, quick: bool) -> list[Session]:
    n, step = (5_000, 1_000) if quick else (1_000_000, 20_000)
    return [Session(workers, [Step("bounded", {"n": n}, {"step": step, "warmup": 4 * step}, first_mode_only=True)], 1)]


ARRAYS = (16, 64, 256, 512)


def broadcast(workers: int, repeats: int, quick: bool) -> list[Session]:
    def session(n: int, arrays: tuple[int, ...], times: int) -> Session:
        steps = [Step("fan-out", {}, {"calls": 10 if quick else 30, "warmup": 5}, "broadcast")]
        steps += [
            Step("broadcast", {"payload": f"array {side}"}, {"rounds": 5 if quick else 9, "warmup": 3})
            for side in arrays
        ]
        return Session(n, steps, times)

    if quick:
        return [
            session(workers, (16, 256), repeats),
            Session(workers, [fan_out_cost([1, workers], 2)], 1, only_ours=True),
        ]
    return [
        session(1, (16,), repeats),
        session(10, (16,), repeats),
        session(16, (*ARRAYS, 2048), repeats),
        session(100, ARRAYS, min(repeats, 3)),
        Session(100, [fan_out_cost([1, 10, 100], 25)], min(repeats, 3), only_ours=True),
    ]


def fan_out_cost(workers: list[int], rounds: int) -> Step:
    return Step("fan-out-cost", {}, {"workers": workers, "rounds": rounds, "warmup": 1}, "broadcast")


def dagger(workers: int, repeats: int, quick: bool) -> list[Session]:
    payloads = ["array 100", "csc 0.0008"]
    payloads += [] if quick else ["csc 0.008", "array 10000", "csc 0.6"]
    # Up to three segments alternate, and the creator of a shared one maps it when it is written again.
    warmup = 5
    rounds = {"array 10000": 3, "csc 0.6": 3}
    steps = [
        Step("broadcast", {"payload": payload}, {"rounds": rounds.get(payload, 9), "warmup": warmup}, "dagger")
        for payload in payloads
    ]
    if quick:
        return [Session(workers, steps, repeats)]
    # Run in a separate system: warm memory from earlier steps would count as already present.
    memory = Step("broadcast-memory", {"payload": "array 10000"}, {}, "dagger", True)
    return [Session(16, steps, min(repeats, 3)), Session(16, [memory], 1)]


def dagger_raw(quick: bool) -> list[Step]:
    size = (8 if quick else 800) * MB
    return [
        Step("raw_memcpy", {"size_bytes": size, "target": target}) for target in ("warm", "first touch, 4 KiB pages")
    ]


def in_place(workers: int, repeats: int, quick: bool) -> list[Session]:
    step = Step("in-place", {"size_bytes": (8 if quick else 80) * MB, "rounds": 10 if quick else 100}, {"warmup": 2})
    return [Session(workers if quick else 16, [step], 1)]


def joblib(workers: int, repeats: int, quick: bool) -> list[Session]:
    steps = [Step("shared-argument", {"size_bytes": (4 if quick else 16) * MB, "n": 20}, {"warmup": 3}, "joblib")]
    # Fits of 1 ms, which show the cost of a call, and of 15 ms, which hide it.
    for samples in [150] if quick else [150, 1_000]:
        search = {"candidates": 12, "folds": 5, "samples": samples}
        steps.append(Step("grid-search", search, {"warmup": 2}, "joblib"))
    return [Session(workers, steps, repeats)]


def raw(quick: bool) -> list[Step]:
    size = (8 if quick else 800) * MB
    count = 200 if quick else 20_000
    pickles = ("pickle.dumps of a call", "pickle.loads of a call", "cloudpickle.dumps of a lambda",
               "pickle.loads of that lambda", "pickle 5 of 1 MB, in band", "pickle 5 of 1 MB, out of band")  # fmt: skip
    return [
        *rtt_steps(quick),
        *(Step("raw_stream", {"kind": kind, "size_bytes": size // 8}) for kind in ("unix", "tcp")),
        *(
            Step("raw_memcpy", {"size_bytes": size, "target": target})
            for target in ("warm", "first touch, 4 KiB pages", "first touch, huge pages")
        ),
        *(Step("raw_pickle", {"what": w}, {"n": count // (20 if "MB" in w else 1)}) for w in pickles),
        *(Step("raw_process", {"what": w}) for w in ("fork, exit, wait", "python -S -c pass", "python -c pass")),
    ]


CASES = {
    case.name: case
    for case in (
        Case("latency", "the round trip of one empty task", latency, rtt_steps),
        Case("throughput", "how many empty tasks per second are sent and collected", throughput),
        Case("map", "how many trivial items per second go through map", map_),
        Case("sleep-map", "the share of the workers' time that short sleeping tasks get", sleep_map, sleep_raw),
        Case("echo", "sending arrays there and back, and one way", echo, echo_raw, needs_numpy=True),
        Case(
            "sizes",
            "the cost of sending values of each kind and size on every route, compared with pickling alone",
            sizes,
            sizes_raw,
            floor=("per_value", "sizes", "per_value"),
            needs_numpy=True,
        ),
        Case("joblib", "calls with one array and a scikit-learn search, through joblib", joblib, needs_numpy=True),
        Case("startup", "the time until every worker has run a task", startup, times_start=True),
        Case("memory", "the memory of an idle worker", memory),
        Case(
            "scale",
            "how costs grow with the number of workers, up to 1,000",
            scale,
            only_ours=True,
            times_start=True,
        ),
        Case("raw", "the machine's own limits", lambda workers, repeats, quick: [], raw),
        Case(
            "overhead",
            "the cost of logging and encryption, as ratios with an interval",
            overhead,
            only_ours=True,
        ),
        Case("broadcast", "sending the same value to every worker", broadcast, needs_numpy=True),
        Case("dagger", "sending large dense and sparse values to every worker", dagger, dagger_raw, needs_numpy=True),
        Case(
            "in-place",
            "the page faults of repeated broadcasts into the same arrays",
            in_place,
            only_ours=True,
            needs_numpy=True,
        ),
        Case("bounded", "the growth of memory over many tasks whose results are dropped", bounded, only_ours=True),
    )
}

# What the figures of each case mean, for its help.
_ROUND_TRIP = {
    "roundtrip_median": "time of a call, from asking to having the result; half of the calls take less",
    "roundtrip_p99": "the same; 99 of 100 calls take less",
}
_BROADCAST = {
    "first": "time until the last worker has the data, in memory that was not used before, and the caller knows",
    "delivered": "the same in memory that was used before",
    "client_processor_N": "the caller's processor time for a call to N workers",
    "client_bytes_sent_N": "bytes that such a call sends",
}
_MEMCPY = {"memcpy": "bandwidth of copying memory", "copy_time": "time to copy the same arrays once"}

FIGURES: dict[str, dict[str, str]] = {
    "latency": _ROUND_TRIP,
    "throughput": {
        "sent": "tasks submitted per second, without waiting for any",
        "roundtrip": "tasks submitted and all results collected, per second",
    },
    "map": {"items": "items that the system's own map processes per second"},
    "sleep-map": {
        "efficiency": "share of the workers' time that was spent in sleeping tasks; 1 is the best possible",
        "efficiency_of_plain": "the same, computed with the length of the sleep in a plain process",
        "elapsed": "time that all tasks took",
        "last_short_task": "time until the last short task ended, with one long task among short ones",
        "stranded": "short tasks that ended after the long one",
        "sleep": "length of the sleep in a plain process",
    },
    "echo": {
        "bandwidth": "bytes sent and received per second",
        "time_per_task": "time of one task with its array",
        "copies": "copies of the bytes made in the client",
        "returns": "time until the call that sends returns",
        "complete": "time until the send is complete",
        "copy_time": _MEMCPY["copy_time"],
    },
    "sizes": {
        "per_value": "time of a call divided by the number of its values: 4 in `map` and `scatter`, otherwise 1",
        "beyond_raw": "the same, less the pickler's own time in the same rounds",
        "of_larger_size": "largest ratio of the time of a value to that of a larger value",
        "of_one_worker": "ratio of the time of sending a value to many workers to that of sending it to one",
    },
    "startup": {"ready": "time from the start until every worker has run a task"},
    "memory": {
        "pss_per_worker": "memory of a worker, with shared pages divided among the processes that map them",
        "pss_other_processes": "memory of all other processes of the system",
    },
    "scale": {
        **_ROUND_TRIP,
        "ready": "time from the start until every worker has run a task",
        "sent": "tasks submitted per second, without waiting for any",
        "roundtrip": "tasks submitted and all results collected, per second",
        "delivered": "time of an empty call to all workers, whose replies are coalesced",
        "delivered_per_worker": "that time divided by the number of workers",
        "pss_per_worker": "memory of a worker, with shared pages divided among the processes that map them",
        "pss_other_processes": "memory of all other processes of the system",
        "idle_switches": "context switches per second of all processes except the client, while idle",
        "idle_processor": "processor time per second that these processes use while idle",
        "of_rate_of_fewest": "tasks per second, relative to those with the fewest workers",
        "of_round_trip_of_fewest": "time of a call, relative to that with the fewest workers",
        "of_start_of_100": "time until every worker has run a task, relative to that of 100 workers",
    },
    "raw": {
        **_ROUND_TRIP,
        "bandwidth": "bytes through a socket per second",
        "memcpy": _MEMCPY["memcpy"],
        "time": "time of one pickling or process start",
    },
    "overhead": {
        "rate_with": "tasks per second with the feature",
        "rate_without": "tasks per second without it",
        "rate_ratio": "median ratio of pairs of runs, with its 95 % interval",
    },
    "broadcast": _BROADCAST,
    "dagger": {
        **{name: _BROADCAST[name] for name in ("first", "delivered")},
        "pss_growth": "memory that all processes gained",
        "pss_share": "the same, as a multiple of the size of the data",
        "payload": "size of the data",
        "memcpy": _MEMCPY["memcpy"],
    },
    "in-place": {
        "delivered": _BROADCAST["delivered"],
        "client_faults": "page faults of the client in all rounds",
        "node_faults": "page faults of the controller",
        "client_faults_of_small": "the same with small arrays, which is the cost of bookkeeping",
        "node_faults_of_small": "the same with small arrays",
    },
    "bounded": {
        "client_growth": "memory that the client gained",
        "controller_growth": "memory that the controller gained",
    },
}

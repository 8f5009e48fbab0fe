"""What the figures of each case mean, for its help. Definitions: docs/benchmarks.md."""

_ROUND_TRIP = {
    "roundtrip_median": "time of a call, from asking to having the result; half of the calls take less",
    "roundtrip_p99": "the same; 99 in 100 calls take less",
}
_BROADCAST = {
    "first": "time until the last worker has data in memory that nobody has touched yet, and the caller knows",
    "delivered": "the same in memory that was used before",
    "client_processor_N": "processor time that a call to N workers costs the caller",
    "client_bytes_sent_N": "bytes that it sends",
}
_MEMCPY = {"memcpy": "bandwidth of copying memory", "copy_time": "time that copying the same arrays once takes"}

FIGURES: dict[str, dict[str, str]] = {
    "latency": _ROUND_TRIP,
    "throughput": {
        "sent": "tasks submitted in a second, without waiting for any",
        "roundtrip": "tasks submitted and all results collected, in a second",
    },
    "map": {"items": "items that the system's own map gets through in a second"},
    "sleep-map": {
        "efficiency": "share of the workers' time that was spent in sleeping tasks; 1 is the best possible",
        "efficiency_of_plain": "the same, by the length that the sleep has in a plain process",
        "elapsed": "time that all tasks took",
        "last_short_task": "with one long task among short ones: when the last short one ended",
        "stranded": "short tasks that ended after the long one",
        "sleep": "length of the sleep in a plain process",
    },
    "echo": {
        "bandwidth": "bytes sent and received in a second",
        "time_per_task": "time of one task with its array",
        "copies": "copies of the bytes made in the client",
        "returns": "time until the caller of a send goes on",
        "complete": "time until the send is complete",
        "copy_time": _MEMCPY["copy_time"],
    },
    "startup": {"ready": "time from nothing until every worker has run a task"},
    "memory": {
        "pss_per_worker": "memory of a worker, shared pages counted by their share",
        "pss_other_processes": "memory of all other processes of the system",
    },
    "raw": {
        **_ROUND_TRIP,
        "bandwidth": "bytes through a socket in a second",
        "memcpy": _MEMCPY["memcpy"],
        "time": "time of one pickling or process start",
    },
    "overhead": {
        "rate_with": "tasks a second with the feature",
        "rate_without": "tasks a second without it",
        "rate_ratio": "median ratio of pairs of runs, with its 95 % interval",
    },
    "broadcast": _BROADCAST,
    "dagger": {
        **{name: _BROADCAST[name] for name in ("first", "delivered")},
        "pss_growth": "memory that all processes gained",
        "pss_share": "that, in copies of the data",
        "payload": "size of the data",
        "memcpy": _MEMCPY["memcpy"],
    },
    "in-place": {
        "delivered": _BROADCAST["delivered"],
        "client_faults": "page faults of the client in all rounds",
        "node_faults": "page faults of the controller",
        "client_faults_of_small": "the same with small arrays: what bookkeeping takes",
        "node_faults_of_small": "the same with small arrays",
    },
    "bounded": {
        "client_growth": "memory that the client gained",
        "controller_growth": "memory that the controller gained",
    },
    "clusters": {
        "ready": "time from nothing until every engine has run a task, the queue included",
        "after_first_line": "the same from the first line of the first job",
        "scheduler_calls": "commands of the scheduler that were run meanwhile, those in jobs included",
        "beyond_raw": "how much longer that took than the bare programs alone: logins, mpiexec, a job's first line",
        "first_line": "time from the submission of a bare job to its first line",
        "first_result": "time from the call to its result where the cluster had no engine",
        "released_after": "time from then until the engines were released",
        "submissions": "jobs that were submitted",
        "starts": "clusters that were started behind the jump host",
        "complete_starts": "those with an engine on every host",
        "certified_after": "time from the death of a rank until a task of its world ends with that error",
        "worlds": "worlds that were started and stopped",
        "clean": "those whose mpiexec ended by itself, without an error",
        "runs": "runs, of which two were at once on the same nodes",
        "succeeded": "those that found their own cluster on both nodes",
        "pair_time": "time of two such runs",
        "rate": "tasks a second while jobs end and others replace them",
        "static_rate": "the same while no job ends",
        "of_static_rate": "the former over the latter",
        "turnovers": "how often all jobs were replaced",
        "lost": "tasks without a result",
        "ran_twice": "tasks that began more than once",
        "status_calls": "questions about jobs that Slurm's controller answered meanwhile, as `sdiag` counts them",
        "status_calls_in_30_s": "how many that is in 30 s",
    },
    "hosts": {
        "link_latency": "half of the least round trip to any host, before the first broadcast",
        "last_engine": "time from the call until the last engine has the data",
        "bytes_into_host": "what came in over the busiest host's link, in copies of the data",
        "of_best_plan": "time of the plan that was chosen over that of the best forced plan",
        "of_chain_model": "time of the plan that was chosen over what `broadleaf plan` computes for a chain",
        "raw_chain": "time of the same bytes through the same hosts in a row with bare sockets",
        "of_raw_chain": "time of the plan that was chosen over that",
        "small_task": "round trip of an empty task, alone and beside a broadcast of 1 GB",
        "small_task_of_idle": "the latter over the former",
    },
    "movers": {
        "last_host": "time until every host has the data in its array: a whole `push` of Broadleaf, or the call of MPI",
        "bytes_into_host": "what came in over the busiest host's link, in copies of the data",
    },
}

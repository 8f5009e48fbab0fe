"""Grid Engine on a bed: qmaster on the head, execd on every other host, with parallel environments and queues."""

from __future__ import annotations

import re

from waiting import until

from bed import Bed

SLOTS_PER_HOST = 4

_PARALLEL = """pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule {rule}
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""
_GROUP = "group_name @nodes\nhostlist {hosts}\n"
_START = """set -eu
mkdir -p /run/gridengine
chown sgeadmin /run/gridengine
echo head > /var/lib/gridengine/default/common/act_qmaster
export SGE_MASTER_PIDFILE=/run/gridengine/qmaster.pid SGE_EXECD_PIDFILE=/run/gridengine/execd.pid
exec {daemon}
"""
# Root runs jobs here, and a job's record is available as soon as it has ended.
_GLOBAL = {
    "min_uid": "0",
    "min_gid": "0",
    "execd_params": "ENABLE_ADDGRP_KILL=true",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 "
    "joblog=false sharelog=00:00:00",
}
# The scheduler runs whenever something has changed.
_SCHEDULER = {"flush_submit_sec": "1", "flush_finish_sec": "1", "schedule_interval": "0:0:2"}
# Jobs do not wait until the host is less busy: the four hosts are one machine, which runs other tests too.
_QUEUE = {"hostlist": "@nodes", "load_thresholds": "NONE", "slots": str(SLOTS_PER_HOST), "pe_list": "mp one"}


def start_gridengine(bed: Bed) -> None:
    """Starts all daemons; every host accepts jobs afterwards."""
    hosts = bed.names[1:]
    bed.run("head", "sh", "-c", _START.format(daemon="/usr/sbin/sge_qmaster"))
    assert until(lambda: bed.run("head", "qconf", "-sh", check=False).returncode == 0, 60), "qmaster does not answer"
    for name in hosts:
        bed.run("head", "qconf", "-ah", name)
    bed.run("head", "qconf", "-as", "head")
    _change(bed, "conf", _GLOBAL)
    _change(bed, "sconf", _SCHEDULER)
    _add(bed, "-Ahgrp", _GROUP.format(hosts=" ".join(hosts)))
    for name, rule in (("mp", "$fill_up"), ("one", "1")):
        _add(bed, "-Ap", _PARALLEL.format(name=name, rule=rule))
    template = bed.run("head", "qconf", "-sq").stdout
    _add(bed, "-Aq", _with(template, _QUEUE | {"qname": "main.q"}))
    _add(bed, "-Aq", _with(template, _QUEUE | {"qname": "short.q", "h_rt": "0:1:0", "pe_list": "mp", "slots": "2"}))
    for name in hosts:
        bed.run(name, "sh", "-c", _START.format(daemon="/usr/sbin/sge_execd"))

    def all_there() -> bool:
        lines = bed.run("head", "qstat", "-f", "-q", "main.q", check=False).stdout.splitlines()
        states = [line.split() for line in lines if line.startswith("main.q@")]
        return len(states) == len(hosts) and all(len(words) == 5 for words in states)  # a sixth says what is wrong

    assert until(all_there, 60), bed.run("head", "qstat", "-f", check=False).stdout


def _with(text: str, values: dict[str, str]) -> str:
    """A configuration, with other values of some entries."""
    for name, value in values.items():
        text, n = re.subn(rf"(?m)^({name}\s+)(.*\\\n)*.*$", rf"\g<1>{value}", text)
        assert n == 1, name
    return text


def _change(bed: Bed, what: str, values: dict[str, str]) -> None:
    _add(bed, f"-M{what}", _with(bed.run("head", "qconf", f"-s{what}").stdout, values), name="global")


def _add(bed: Bed, option: str, text: str, name: str = "added") -> None:
    bed.write("head", f"/tmp/{name}", text.replace("#global:\n", ""))
    bed.run("head", "qconf", option, f"/tmp/{name}")

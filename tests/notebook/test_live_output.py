"""Every line of every engine, including those that raise and die."""

from __future__ import annotations

import random
import re

import broadleaf as ipp
import pytest

ENGINES = 12
LINES = 400
STORM = f"""
import os, random, sys
numbers = random.Random(engine_id)
for i in range({LINES}):
    print(i, numbers.random())
    print(i, numbers.random(), file=sys.stderr)
if engine_id == 3:
    raise ValueError("on three")
if engine_id == 5:
    END
"""


def printed_by(engine):
    """What an engine writes to both streams, line by line."""
    numbers = random.Random(engine)
    pairs = [(f"{i} {numbers.random()}", f"{i} {numbers.random()}") for i in range(LINES)]
    return [out for out, _ in pairs], [err for _, err in pairs]


def lines_by_engine(text):
    """The numbered lines of a cell's output, by the engine of the label they stand behind."""
    found, engine = {}, None
    for line in text.splitlines():
        labelled = re.match(r"\[(?:stdout|stderr):(\d+)\] ?(.*)", line)
        if labelled:
            engine, line = int(labelled[1]), labelled[2]
        elif line.startswith("["):
            engine = None
        if engine is not None and re.match(r"\d+ \d\.\d+", line):
            found.setdefault(engine, []).append(line)
    return found


@pytest.mark.parametrize("how", [{}, {"groupby": "lines"}, {"stream": False}], ids=str)
@pytest.mark.parametrize("end", ["os._exit(9)", "sys.stdout.flush(); sys.stderr.flush(); os.kill(os.getpid(), 9)"])
def test_nothing_is_lost_when_one_raises_and_one_dies(capsys, how, end):
    with ipp.Cluster(n=ENGINES) as rc:
        ar = rc[:].execute(STORM.replace("END", end), silent=False, block=False)
        with pytest.raises(ipp.RemoteError) as caught:
            ar.show(**how)
    shown = capsys.readouterr()
    out, err = lines_by_engine(shown.out), lines_by_engine(shown.err)
    for engine in range(ENGINES):
        assert (out[engine], err[engine]) == printed_by(engine)
    told = shown.err if how.get("stream", True) else "\n".join(caught.value.render_traceback())
    assert told.count("ValueError: on three") == 1
    assert re.search("code 9|signal 9|SIGKILL", told)


def test_lines_of_one_engine_are_not_cut(rc, capsys):
    """Half a line of one engine is not shown as a line."""
    rc[:].execute("for c in 'ab\\n':\n    print(c, end='', flush=True)", silent=False).show()
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[stdout:{engine}] ab" for engine in range(4)]


def test_another_client_gets_what_was_printed_and_shown(rc, cluster):
    ran = rc[:2].execute("print('said')\ndisplay(3)\n5", silent=False, block=True)
    failed = rc[:2].execute("print('said before')\n1 / 0", silent=False, block=False)
    failed.wait(20)
    with cluster.connect_client_sync() as other:
        replies = other.get_result(ran.msg_ids).get(20)
        assert [type(reply) for reply in replies] == [ipp.ExecuteReply] * 2
        assert [(reply.stdout, reply.data["text/plain"]) for reply in replies] == [("said\n", "5")] * 2
        assert [output["data"]["text/plain"] for output in replies[0].outputs] == ["3"]
        theirs = other.get_result(failed.msg_ids)
        theirs.wait(20)
        assert theirs.stdout == ["said before\n"] * 2
        assert theirs.status == ["error"] * 2
        plain = rc[0].apply_async(dict, a=1)
        plain.wait(20)
        assert other.get_result(plain.msg_ids).get(20) == [{"a": 1}]


def test_what_another_client_gets_is_bounded(rc, cluster):
    ran = rc[0].execute("for i in range(100_000): print(i)", silent=False, block=True)
    with cluster.connect_client_sync() as other:
        text = other.get_result(ran.msg_ids).get(20)[0].stdout
    first, *_, last = text.splitlines()
    assert re.fullmatch(r"\.\.\. \d+ bytes dropped \.\.\.", first)
    assert last == "99999"
    assert len(text) < 70_000

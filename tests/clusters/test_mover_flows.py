"""What a mover receives and sends, by a process that sends to itself with each MPI."""

from __future__ import annotations

import json
import subprocess

import pytest
from mpi_environments import MPIS, EnvironmentUnavailable, mpi_arguments, mpi_python

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import json, mmap, os
from mpi4py import MPI
from broadleaf.mpi.flows import Receiving, Sending
from broadleaf.mpi.flows import Exposing, Reading, Window

ONE_SIDED = {one_sided}
if ONE_SIDED:
    window = Window(MPI, MPI.COMM_WORLD)
PIECE, N, TAG = 1000, 20, 3
LEN = N * PIECE - 1

def segment(content):
    fd = os.memfd_create("segment")
    os.write(fd, content)
    return fd

class Ends:
    def __init__(self):
        self.fd = segment(bytes(LEN))
        numbers = [0, TAG, PIECE, 0, LEN, 0]
        source, target = segment(b"x" * LEN), os.dup(self.fd)
        if ONE_SIDED:
            self.to, self.by = Exposing(window, numbers, source), Reading(window, numbers, target)
        else:
            self.to = Sending(MPI, MPI.COMM_WORLD, numbers, source)
            self.by = Receiving(MPI, MPI.COMM_WORLD, numbers, target)

    def until(self, is_done):
        while not is_done():
            self.to.advance()
            self.by.advance()

    def result(self):
        written = mmap.mmap(self.fd, LEN, prot=mmap.PROT_READ)[:]
        return [self.by.at, written.count(b"x")]

# Everything, with memory that comes in pieces.
ends = Ends()
ends.to.ready(LEN)
for end in (2 * PIECE, 5 * PIECE, LEN):
    ends.by.ready(end)
    ends.until(lambda: ends.by.at == end)
ends.until(lambda: ends.to.has_ended and ends.by.has_ended)
print(json.dumps(ends.result()))

# Stopped where there is no memory: what had left is discarded, and the empty message received.
ends = Ends()
ends.to.ready(LEN)
ends.by.ready(2 * PIECE)
ends.until(lambda: ends.by.at == 2 * PIECE)
for _ in range(1000):
    ends.to.advance()
    ends.by.advance()
print(json.dumps(ends.result()))
ends.by.stop()
ends.to.stop()
ends.until(lambda: ends.to.has_ended and ends.by.has_ended)
print(json.dumps(ends.result()))

# Stopped although everything had left: no empty message comes.
ends = Ends()
ends.to.ready(LEN)
ends.by.ready((N - 2) * PIECE)
ends.until(lambda: ends.by.at == (N - 2) * PIECE)
for _ in range(1000):
    ends.to.advance()
ends.by.stop()
ends.to.stop()
ends.until(lambda: ends.to.has_ended and ends.by.has_ended)
print(json.dumps(ends.result()))

# Nobody sends it.
ends = Ends()
ends.by.ready(LEN)
ends.by.abandon()
while not ends.by.has_ended:
    ends.by.advance()
print(json.dumps(ends.result()))

# Nothing is left over for the next flow with this tag.
for comm in (window.words, window.answers) if ONE_SIDED else (MPI.COMM_WORLD,):
    assert not comm.Iprobe(source=0, tag=TAG)
if ONE_SIDED:
    window.close()
"""


@pytest.mark.parametrize("is_one_sided", [False, True], ids=["two-sided", "one-sided"])
@pytest.mark.parametrize("name", MPIS)
def test_what_is_received_is_written_only_where_there_is_memory(name, is_one_sided):
    try:
        python = str(mpi_python(name))
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
    program = PROGRAM.replace("{one_sided}", str(is_one_sided))
    command = [python.rpartition("/")[0] + "/mpiexec", *mpi_arguments(name), "-n", "1", python, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    complete, waiting, stopped, almost, abandoned = (json.loads(line) for line in done.stdout.splitlines())
    assert complete == [19_999, 19_999]
    assert waiting == stopped == [2_000, 2_000]
    assert almost == [18_000, 18_000]
    assert abandoned == [0, 0]

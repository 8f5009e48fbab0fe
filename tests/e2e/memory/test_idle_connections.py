"""Memory that connections held for large messages is returned to the system when they are idle."""

import json
from pathlib import Path

import broadleaf as ipp
import pytest
from waiting import until

MIB = 1 << 20
pytestmark = pytest.mark.timeout(180)


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is neither a file's nor shared."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def test_the_controllers_memory_after_large_messages(tmp_path: Path):
    with ipp.Cluster(n=2, listen="127.0.0.1:0") as local:
        node = local.cluster.status_sync()["pid"]
        connection = json.loads(Path(local.cluster.connection_file).read_text()) | {"transport": "tcp"}
        path = tmp_path / "tcp.json"
        path.write_text(json.dumps(connection))
        # From another host everything travels in messages.
        with ipp.Client(str(path)) as remote:
            remote[:].apply_sync(abs, 1)
            before = anonymous_bytes(node)
            for _ in range(3):
                results = [remote[engine].apply_async(bytes, 16 * MIB) for engine in (0, 1, 0)]
                assert [len(result.get(timeout=60)) for result in results] == [16 * MIB] * 3
            del results
            # The connections are open, and nothing travels.
            assert until(lambda: anonymous_bytes(node) - before < 8 * MIB, 60), "idle connections keep their memory"
            assert len(remote[0].apply_sync(bytes, 16 * MIB)) == 16 * MIB

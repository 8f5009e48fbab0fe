"""The fake controller's answers to control requests."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from broadleaf.client.failures import STATUS_CANCELLED as CANCELLED


class Requests:
    """The part of the fake link that answers requests."""

    cluster: Any
    waiting: dict[int, Any]
    client_id: int

    def on_cancel(self, seqs: list[int]) -> Any:
        with self.cluster.changed:
            for seq in seqs:
                task = self.waiting.get(seq)
                if task is None:
                    continue
                task.cancelled = True
                if task in self.cluster.queue:
                    self.cluster.queue.remove(task)
                    self.cluster.resolve(task, (CANCELLED, b"", []), -1, 0)
                elif task.thread is not None:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(task.thread), ctypes.py_object(KeyboardInterrupt)
                    )
        return "Done"

    def on_records(self, names: Any) -> Any:
        with self.cluster.changed:
            running = [e.running for e in self.cluster.engines.values() if e.running is not None]
            live = {(self.client_id, seq): task for seq, task in self.waiting.items()}
            chosen = live if names is None else {tuple(name) for name in names} & set(live)
            records = [self.record(name, live[name] in running) for name in sorted(chosen)]
        return {"Records": {"now_ns": 0, "records": records}}

    def record(self, name: tuple[int, int], is_running: bool) -> dict[str, Any]:
        fields = {"client": name[0], "seq": name[1], "status": None, "engine": 2**32 - 1, "is_running": is_running}
        times = dict.fromkeys(("submitted_ns", "started_ns", "completed_ns"), 0)
        return {**fields, **times, "label": "", "has_result": True, "can_run_again": False}

    def on_forget(self, _: Any) -> Any:
        return "Done"

    def on_queuestatus(self, _: Any) -> Any:
        with self.cluster.changed:
            engines = self.cluster.engines.values()
            n_queued = {e.id: sum(task.targets == [e.id] for task in self.cluster.queue) for e in engines}
            return {"Queues": [[e.id, n_queued[e.id], int(e.running is not None), e.completed] for e in engines]}

    def on_explain(self, seq: int) -> Any:
        return {"Text": f"task {seq} waits"}

    def on_status(self, _: Any) -> Any:
        return {"Text": json.dumps({"engines": len(self.cluster.engines)})}

    def on_stopengines(self, _: Any) -> Any:
        return {"Failed": "not in this fake"}

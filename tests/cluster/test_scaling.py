"""How many blocks are requested and which are released, even with schedulers that do everything that schedulers do."""

import random

import pytest
from broadleaf.cluster.scaling import Aim, Decision, Load, Retries, Starts, Unit, decide, wanted_engines

NOTHING = Load(0, None)


def idle(name: str, n: int = 4, idle_s: float = 100.0, **facts) -> Unit:
    return Unit(name, n, "running", idle_s=idle_s, **facts)


def busy(name: str, n: int = 4, **facts) -> Unit:
    return Unit(name, n, "running", n_busy=n, **facts)


def decided(aim: Aim, units=(), load: Load = NOTHING, size: int | None = 4, **facts) -> Decision:
    return decide(aim, units, load, block_engines=size, start_s=10.0, **facts)


def test_scaling_up_asks_for_whole_blocks():
    assert decided(Aim(10, 10)).submit == (4, 4, 4)
    assert decided(Aim(10, 10), size=None).submit == (10,)
    assert decided(Aim(10, 10), [busy("b0"), Unit("b1", 4, "pending")]).submit == (4,)
    assert decided(Aim(8, 8), [busy("b0"), busy("b1")]) == Decision()


def test_scaling_down_takes_pending_blocks_first_then_idle_ones_without_data():
    units = [busy("b0"), idle("b1", holds_data=True), idle("b2"), Unit("b3", 4, "pending")]
    assert decided(Aim(12, 12), units) == Decision(cancel=("b3",))
    assert decided(Aim(8, 8), units) == Decision(cancel=("b3",), drain=("b2",))
    assert decided(Aim(4, 4), units).drain == ("b2", "b0")
    assert decided(Aim(0, 0), units).kept_for_data == ("b1",)
    assert decided(Aim(0, 0, stateless=True), units).drain == ("b2", "b0", "b1")


def test_a_block_is_never_cut_in_two():
    assert decided(Aim(6, 6), [busy("b0"), busy("b1")]) == Decision()


def test_adapting_grows_with_work_that_is_queued():
    aim = Aim(0, 16, idle_s=60.0)
    assert decided(aim) == Decision()
    assert decided(aim, load=Load(1, None)).submit == (4,)
    assert wanted_engines(aim, [], Load(1000, 0.001)) == 1
    assert wanted_engines(aim, [busy("b0")], Load(1000, 1.0)) == 16
    assert decided(aim, [Unit("b0", 4, "pending")], Load(1000, 1.0)) == Decision(), "one at a time"
    assert decided(aim, [Unit("b0", 0, "pending")], Load(1000, 1.0)).submit == (4,), (
        "its engines are gone, its job is not"
    )
    assert decided(aim, [busy("b0")], Load(1000, 1.0), one_at_a_time=False).submit == (4, 4, 4)
    assert decided(Aim(0, 6, idle_s=60.0), [busy("b0")], Load(1000, 1.0)) == Decision(), "6 is the most"


def test_adapting_releases_what_was_idle_for_long_enough_and_cancels_what_is_pending_in_vain():
    aim = Aim(4, 16, idle_s=60.0)
    units = [idle("b0", idle_s=59.9), idle("b1", idle_s=60.0), busy("b2"), Unit("b3", 4, "pending")]
    assert decided(aim, units) == Decision(cancel=("b3",), drain=("b1",))
    assert decided(aim, units[:2]) == Decision(drain=("b1",))
    assert decided(aim, [idle("b0")]) == Decision(), "that is the minimum"
    assert decided(Aim(0, 16, idle_s=60.0), [idle("b0", holds_data=True)]).drain == ()


def test_a_block_that_ends_is_replaced_before():
    aim = Aim(4, 4)
    assert decided(aim, [busy("b0", lasts_s=10.1)]) == Decision()
    assert decided(aim, [busy("b0", lasts_s=9.9)]).submit == (4,)
    assert decided(aim, [busy("b0", lasts_s=9.9), Unit("b1", 4, "pending")]) == Decision()


def test_what_is_lost_comes_back_where_it_was():
    aim = Aim(8, 8)
    # A host of b0 is lost with 2 of its engines: there is a new block, and b0 stays until that is up.
    assert decided(aim, [busy("b0", 2), busy("b1")]) == Decision(submit=(4,))
    assert decided(aim, [idle("b0", 2), busy("b1"), Unit("b2", 4, "pending")]) == Decision()
    assert decided(aim, [idle("b0", 2), busy("b1"), busy("b2")]) == Decision(drain=("b0",))
    # Engines that died on a host that lives start there, and no more than are wanted.
    assert decided(aim, [busy("b0", 2, n_dead=2), busy("b1")]) == Decision(revive=(("b0", 2),))
    assert decided(Aim(6, 6), [busy("b0", 2, n_dead=2), busy("b1", 3, n_dead=1)]) == Decision(revive=(("b0", 1),))
    assert decided(Aim(2, 6), [busy("b0", 2, n_dead=2)]) == Decision()


def test_where_hosts_are_given_those_that_are_lost_come_back_and_no_others():
    lost = [Unit("b1", 4, "lost"), Unit("b2", 2, "lost")]
    assert decided(Aim(10, 10), [busy("b0"), *lost], size=0) == Decision(revive=(("b1", 4), ("b2", 2)))
    assert decided(Aim(6, 6), [busy("b0"), *lost], size=0) == Decision(revive=(("b1", 4),))
    assert decided(Aim(4, 4), [busy("b0"), *lost], size=0) == Decision()
    assert decided(Aim(12, 12), [busy("b0"), *lost], size=0).n_short == 2
    aim = Aim(2, 12)
    assert decided(aim, [busy("b0"), *lost], Load(9, None), size=0) == Decision(revive=(("b1", 4),)), "one at a time"
    assert decided(aim, [busy("b0"), Unit("b1", 4, "pending"), lost[1]], Load(9, None), size=0) == Decision()


def test_a_place_that_fails_is_tried_again_ever_later():
    retries = Retries()
    assert retries.is_due("n1", 0.0)
    at, waits = 0.0, []
    for _ in range(5):
        retries.failed("n1", at, "no route to the host")
        waits.append(next(s / 4 for s in range(100) if retries.is_due("n1", at + s / 4)))
        at += 100
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert retries.is_due("n2", 0.0)
    assert retries.why == "n1 will be tried again: no route to the host"
    retries.came_up("n1")
    assert retries.why == ""
    assert retries.is_due("n1", 0.0)


def test_a_job_that_was_put_back_into_the_queue_may_be_overtaken():
    late = Unit("b1", 4, "pending", is_late=True)
    assert decided(Aim(8, 8), [busy("b0"), late]).submit == (4,)
    assert decided(Aim(8, 8), [busy("b0"), late, Unit("b2", 4, "pending")]) == Decision(), "whichever comes first"
    assert decided(Aim(8, 8), [busy("b0"), late, busy("b2")]) == Decision(cancel=("b1",))
    assert decided(Aim(8, 8), [busy("b0"), busy("b1"), Unit("b2", 4, "pending")]) == Decision(cancel=("b2",))


def test_three_failed_starts_in_a_row_pause():
    starts = Starts()
    for reason in ("no such partition", "job 4 was preempted (PREEMPTED)", "no such partition"):
        starts.failed(reason)
    assert starts.why_paused == ""
    starts.came_up(2.0)
    for reason in ("a", "b", "c"):
        starts.failed(reason)
    assert starts.why_paused == "3 blocks in a row did not start; the last one: c"


class Scheduler:
    """A cluster controlled by a scheduler, on a simulated clock: the scheduler refuses, holds back forever, kills and
    preempts.
    """

    LIFE_S = 60.0
    NOTICE_S = 6.0

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice([1, 2, 4])
        self.aim = Aim(0, self.size * self.random.randint(1, 4), idle_s=self.random.choice([2.0, 20.0]))
        self.start_s = self.random.choice([0.5, 5.0])
        self.calm_after_s = self.random.choice([0.0, 200.0])
        self.starts = Starts()
        self.now = 0.0
        self.tasks = self.random.randint(1, 300)
        self.task_s = self.random.choice([0.1, 1.0])
        self.blocks: dict[str, dict] = {}
        self.n_blocks = self.n_submitted = 0

    def chance(self, percent: float) -> bool:
        return self.now < self.calm_after_s and self.random.random() * 100 < percent

    def units(self) -> list[Unit]:
        found = []
        for name, block in self.blocks.items():
            if block["draining"]:
                continue
            if block["up_at"] is None or block["up_at"] > self.now:
                found.append(Unit(name, self.size, "pending"))
                continue
            lasts_s = block["up_at"] + self.LIFE_S - self.NOTICE_S - self.now
            idle_s = self.now - block["idle_since"] if not block["busy"] else 0.0
            found.append(Unit(name, self.size, "running", block["busy"], idle_s, lasts_s=lasts_s))
        return found

    def submit(self) -> None:
        if self.chance(20):
            self.starts.failed("refused")
            return
        self.n_blocks += 1
        up_at = None if self.chance(10) else self.now + self.start_s * self.random.random()
        dies_at = self.now + self.random.random() * 60 if self.chance(30) else 1e9
        self.blocks[f"b{self.n_blocks}"] = {
            "at": self.now, "up_at": up_at, "dies_at": dies_at, "busy": 0, "idle_since": 0.0, "draining": False,
            "told": False, "worked_s": 0.0,
        }  # fmt: skip

    def work(self, step_s: float) -> None:
        for block in self.blocks.values():
            if block["up_at"] is None or block["up_at"] > self.now:
                continue
            if not block["told"]:
                block["told"], block["idle_since"] = True, self.now
                self.starts.came_up(self.now - block["at"])
            before = block["busy"]
            ends = block["up_at"] + self.LIFE_S - self.NOTICE_S <= self.now
            n = 0 if block["draining"] or ends else min(self.size, self.tasks)
            block["worked_s"] += n * step_s
            n_done = min(self.tasks, int(block["worked_s"] / self.task_s))
            block["worked_s"] -= n_done * self.task_s
            self.tasks -= n_done
            block["busy"] = n
            if before and not n:
                block["idle_since"] = self.now

    def lose(self) -> None:
        for name, block in list(self.blocks.items()):
            is_up = block["up_at"] is not None and block["up_at"] <= self.now
            if block["draining"] or (is_up and self.now >= block["up_at"] + self.LIFE_S):
                del self.blocks[name]
            elif self.now >= block["dies_at"]:
                if not is_up:
                    self.starts.failed("killed while it started")
                del self.blocks[name]
            elif block["up_at"] is None and self.now - block["at"] > 100:  # the queue's timeout
                self.starts.failed("pending for too long")
                del self.blocks[name]

    def run(self) -> None:
        for _ in range(4000):
            self.now += 0.25
            self.work(0.25)
            self.lose()
            if self.chance(0.5):
                self.tasks += self.random.randint(1, 100)
            units, load = self.units(), Load(self.tasks, self.task_s)
            if self.starts.why_paused:
                self.starts = Starts()  # somebody looks after it
            start_s = self.starts.start_s
            decision = decide(self.aim, units, load, block_engines=self.size, start_s=start_s)
            lasting = sum(unit.n_engines for unit in units if unit.lasts_s is None or unit.lasts_s > start_s)
            assert not decision.submit or lasting + sum(decision.submit) <= self.aim.maximum
            by_name = {unit.id: unit for unit in units}
            for name in decision.drain:
                assert by_name[name].idle_s >= (self.aim.idle_s or 0.0)
                assert not by_name[name].n_busy
                self.blocks[name]["draining"] = True
            for name in decision.cancel:
                assert by_name[name].state == "pending"
                del self.blocks[name]
            assert not (decision.submit and (decision.drain or decision.cancel))
            for _ in decision.submit:
                assert self.tasks or any(unit.n_busy for unit in units), "nobody needs it"
                self.submit()
            if not self.tasks and not self.blocks and self.now > self.calm_after_s:
                return
        raise AssertionError(f"{self.tasks} tasks and {self.blocks} are left")


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_whatever_the_scheduler_does_all_is_done_and_released(first):
    for seed in range(first, first + 250):
        try:
            Scheduler(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


class Losses:
    """A cluster of a fixed size whose hosts and engines are lost, on a simulated clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.are_given = self.random.random() < 0.5
        self.hosts = 1 if self.are_given else self.random.choice([1, 2, 3])
        self.per_host = self.random.choice([1, 2])
        n_blocks = self.random.randint(1, 4)
        self.size = self.hosts * self.per_host
        self.aim = Aim(n_blocks * self.size, n_blocks * self.size)
        self.now = 0.0
        self.n_blocks = 0
        self.blocks: dict[str, dict] = {}
        if self.are_given:
            for _ in range(n_blocks):
                self.submit()

    def submit(self) -> None:
        self.n_blocks += 1
        self.blocks[f"b{self.n_blocks}"] = self.begun()

    def begun(self) -> dict:
        return {"up_at": self.now + 10 * self.random.random(), "hosts": [self.per_host] * self.hosts, "over": False}

    def units(self) -> list[Unit]:
        found = []
        for name, block in self.blocks.items():
            if block["over"]:
                found += [Unit(name, self.size, "lost")] * self.are_given
            elif block["up_at"] > self.now:
                found.append(Unit(name, self.size, "pending"))
            else:
                n = sum(block["hosts"])
                n_dead = len(block["hosts"]) * self.per_host - n
                found.append(Unit(name, n, "running", n_dead=n_dead))
        return found

    def lose(self) -> None:
        running = [block for block in self.blocks.values() if not block["over"] and block["up_at"] <= self.now]
        if self.now > 100 or not running or self.random.random() > 0.05:
            return
        block = self.random.choice(running)
        index = self.random.randrange(len(block["hosts"]))
        if self.random.random() < 0.5:
            block["hosts"][index] = self.random.randrange(self.per_host)  # engines
        else:
            del block["hosts"][index]
        block["over"] = not block["hosts"]

    def run(self) -> None:
        size = 0 if self.are_given else self.size
        n_up = 0
        for _ in range(800):
            self.now += 0.25
            self.lose()
            units = self.units()
            n_up = sum(unit.n_engines for unit in units if unit.state == "running")
            decision = decide(self.aim, units, NOTHING, block_engines=size, start_s=1.0, one_at_a_time=False)
            by_name = {unit.id: unit for unit in units}
            n_left = n_up - sum(by_name[name].n_engines for name in decision.drain)
            assert not decision.drain or n_left >= self.aim.minimum, "it releases what it needs"
            for name in (*decision.drain, *decision.cancel):
                self.blocks[name]["over"] = True
            for name, n in decision.revive:
                block = self.blocks[name]
                if block["over"]:
                    self.blocks[name] = self.begun()
                    continue
                for index, there in enumerate(block["hosts"]):
                    back = min(n, self.per_host - there)
                    block["hosts"][index] += back
                    n -= back
            for _ in decision.submit:
                self.submit()
            is_whole = not decision.submit and not decision.revive
            if self.now > 100 and is_whole and all(unit.state != "pending" for unit in self.units()):
                break
        assert n_up >= self.aim.minimum, f"{n_up} of {self.aim.minimum}"
        assert n_up < self.aim.minimum + self.size, "more than a block too many"


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_whatever_is_lost_a_cluster_gets_its_size_back(first):
    for seed in range(first, first + 250):
        try:
            Losses(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

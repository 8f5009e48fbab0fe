//! Engine processes and the fork server: how they handle messages, and how they end.

use broadleaf_core::interrupts::Interrupts;
use broadleaf_core::{Input, Nanos};
use broadleaf_engine::{Before, Next, Turn, Work};
use broadleaf_proto::Mode;
use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, FunctionId, HostId};
use broadleaf_proto::task::{DoneRecord, OutputRecord, Payload, Status};
use bytes::Bytes;

use crate::Mutation;
use crate::cluster::{Cluster, EngineMessage, Event, Link, NodeEvent};
use crate::peers::engine::{EngineProcess, Running};
use crate::peers::links::Actor;
use crate::peers::values::object_of;
use crate::work::job::{Fate, JOB_OUTPUT_BYTES, Job, Preparation, index_of};

const MS: Nanos = 1_000_000;
/// Number of signals that come right before a blocking call of a task, and have no effect.
const MAX_LOST_SIGNALS: u32 = 3;
/// Time in which more signals than that are sent.
const INTERRUPTED_NS: Nanos = 100 * MS;

impl Cluster {
    pub(crate) fn spawn(&mut self, engine: EngineId) {
        let Some(number) = self.fork_server else {
            return;
        };
        if let Some(event) = self.fails_to_start(engine) {
            let event = Event::Node(NodeEvent::FromForkServer(event));
            self.send(Link::FromForkServer(number), event);
            return;
        }
        self.next_pid += 1;
        let pid = self.next_pid;
        self.processes.insert(pid, EngineProcess::new(engine, pid));
        let spawned = NodeEvent::FromForkServer(ForkServerEvent::Spawned(engine, pid));
        self.send(Link::FromForkServer(number), Event::Node(spawned));
        if self.random.chance(self.plan.bad_start_percent) {
            let delay = self.random.time(100 * MS);
            self.after(delay, Event::EngineExits(pid, 3));
        } else {
            self.send(Link::FromEngine(pid), Event::Node(NodeEvent::Hello(pid)));
        }
    }

    /// Occasionally no process can be created for an engine: the event that reports this.
    pub(crate) fn fails_to_start(&mut self, engine: EngineId) -> Option<ForkServerEvent> {
        if !self.random.chance(self.plan.no_process_percent) {
            return None;
        }
        self.deaths += 1;
        let reason = "no process".into();
        Some(ForkServerEvent::NotStarted { engine, reason })
    }

    pub(crate) fn end_process(&mut self, pid: u32, code: Option<i32>, signal: Option<i32>) {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return;
        };
        process.alive = false;
        process.running = None;
        process.stack.clear();
        process.work = Work::default();
        let (engine, host) = (process.engine, process.host);
        self.deaths += 1;
        self.close_link(pid);
        self.end_clients_of(pid);
        let watched = self.processes.get(&pid).is_some_and(|p| p.watched);
        let event = ForkServerEvent::Exited {
            engine,
            pid,
            code,
            signal,
            out_of_memory: false,
            last_output: "last words".into(),
        };
        if host != HostId::CONTROLLER {
            self.relay_reports(host, EngineReport::ForkServer(event));
        } else if let Some(number) = self.fork_server.filter(|_| watched) {
            let event = Event::Node(NodeEvent::FromForkServer(event));
            self.send(Link::FromForkServer(number), event);
        }
    }

    pub(crate) fn close_link(&mut self, pid: u32) {
        if self
            .processes
            .get(&pid)
            .is_some_and(|p| p.host != HostId::CONTROLLER)
        {
            self.relay_link_closed(pid);
            return;
        }
        let closed = Event::Node(NodeEvent::EngineClosed(pid));
        self.cut.remove(&Link::FromEngine(pid));
        self.send(Link::FromEngine(pid), closed);
        self.cut.insert(Link::FromEngine(pid));
        self.cut.insert(Link::ToEngine(pid));
    }

    /// Only the link is lost; its process notices later.
    pub(crate) fn lose_link(&mut self, pid: u32) {
        let linked = self
            .processes
            .get(&pid)
            .is_some_and(|p| p.alive && p.linked);
        if linked {
            self.deaths += 1;
            self.close_link(pid);
            let delay = self.random.time(3_000 * MS);
            self.after(delay, Event::EngineExits(pid, 1));
        }
    }

    pub(crate) fn end_fork_server(&mut self) {
        let Some(number) = self.fork_server.take() else {
            return;
        };
        for process in self.processes.values_mut() {
            process.watched &= process.host != HostId::CONTROLLER;
        }
        self.send(
            Link::FromForkServer(number),
            Event::Node(NodeEvent::ForkServerClosed),
        );
    }

    pub(crate) fn engine_gets(&mut self, pid: u32, message: EngineMessage) -> Result<(), String> {
        let stopped = self.links_to_hosts.goes_on_at(self.now, Actor::Engine(pid));
        if let Some(until) = stopped {
            self.after(until - self.now, Event::Engine(pid, message));
            return Ok(());
        }
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        match message {
            EngineMessage::Function(record) => {
                let body = index_of(&record.body);
                if Preparation::of_body(body).is_some() {
                    process.work.prepare(record.body);
                    return self.go_on(pid);
                }
                process.functions.insert(record.function.0, body);
            }
            EngineMessage::Assign(record) => {
                if !process.functions.contains_key(&record.function.0) {
                    return Err(format!("{:?} is unknown to process {pid}", record.function));
                }
                if record.offer < process.next_offer {
                    return Err(format!("offer {} was overtaken", record.offer));
                }
                process.next_offer = record.offer + 1;
                process.work.push(record);
                self.go_on(pid)?;
            }
            EngineMessage::Stop => {
                process.work.stop();
                self.go_on(pid)?;
            }
        }
        Ok(())
    }

    pub(crate) fn start_next(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        if process.running.is_some() {
            return Ok(());
        }
        let record = match process.next_step() {
            Next::Run(record) => record,
            Next::Prepare(bodies) => {
                for made in bodies
                    .iter()
                    .filter_map(|b| Preparation::of_body(index_of(b)))
                {
                    let name = (made.client, made.name);
                    process.prepared.insert(name, made.version);
                }
                return self.start_next(pid);
            }
            Next::Stop => {
                self.flush(pid);
                self.end_process(pid, Some(0), None);
                return Ok(());
            }
            Next::Nothing => {
                self.flush(pid);
                return Ok(());
            }
        };
        self.before_user_code(pid, record.function);
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        if !process.claim(record.offer) {
            return self.start_next(pid);
        }
        self.runs += 1;
        self.max_levels = self.max_levels.max(process.stack.len() + 1);
        let job = &self.jobs[index_of(&record.payload.bytes) as usize];
        // If another client runs it again, it may find itself unprepared.
        if !self.reruns.contains_key(&job.index) {
            for wanted in &job.prepared {
                let made = process.prepared.get(&(wanted.client, wanted.name));
                if made.is_none_or(|version| *version < wanted.version) {
                    return Err(format!(
                        "job {} found process {pid} without {wanted:?}",
                        job.index
                    ));
                }
            }
        }
        process.running = Some(Running {
            key: record.key,
            offer: record.offer,
            job: job.index,
            function: record.function.0,
            started_ns: self.now,
            run: self.runs,
            interrupted: false,
            is_to_stop: false,
            lost_signals: 0,
            depth: record.depth,
            outer: process.nesting.enter(record.key, record.depth),
            wait: None,
        });
        let each = job.options.mode == Mode::Each;
        let target = each.then_some(process.engine);
        let starts = self.starts.entry((job.index, target)).or_default();
        *starts += 1;
        let unmet = self.unmet.get(&job.index).copied().unwrap_or(0);
        let reruns = self.reruns.get(&job.index).copied().unwrap_or(0);
        if *starts > (1 + job.options.retries) * (1 + reruns) + unmet {
            return Err(format!("job {} was started {starts} times", job.index));
        }
        let (duration, run) = (job.duration_ns, self.runs);
        if job.children > 0 {
            self.after(duration, Event::TaskNests(pid, run));
        } else if job.fate != Fate::Hang {
            self.after(duration, Event::TaskEnds(pid, run));
        }
        Ok(())
    }

    /// The process at the other end of an engine's link.
    pub(crate) fn process_of(&self, host: HostId, engine: EngineId) -> Option<u32> {
        let links = match self.hosts.get(&host) {
            Some(relay) => &relay.linked,
            None if host == HostId::CONTROLLER => &self.links,
            None => return None,
        };
        links.get(&engine).copied()
    }

    /// A host is to interrupt the task of an offer, if it is running.
    pub(crate) fn interrupt(&mut self, host: HostId, engine: EngineId, offer: u32) {
        let pid = self.process_of(host, engine);
        let process = pid.and_then(|pid| self.processes.get_mut(&pid));
        let Some(process) = process.filter(|p| p.alive) else {
            return;
        };
        let pid = process.pid;
        let Some(task) = process.task_of(offer) else {
            return;
        };
        task.is_to_stop = true;
        let machine = self.interrupts.entry(host).or_default();
        machine.on_sent(self.now, engine, offer);
        self.wait_for_interrupts(host);
        self.after(INTERRUPTED_NS, Event::HasActed(pid, offer));
        self.signal(pid);
    }

    fn wait_for_interrupts(&mut self, host: HostId) {
        let machine = self.interrupts.get(&host);
        if let Some(at) = machine.and_then(Interrupts::next_due) {
            self.after(at.saturating_sub(self.now), Event::Interrupts(host));
        }
    }

    /// Interrupts of a host may have to be sent again.
    pub(crate) fn repeat_interrupts(&mut self, host: HostId) {
        let Some(mut machine) = self.interrupts.remove(&host) else {
            return; // The host is gone.
        };
        let is_due = machine.next_due().is_some_and(|at| at <= self.now);
        let mut again = Vec::new();
        let is_open = |engine, offer| {
            let process = self.process_of(host, engine);
            let process = process.and_then(|pid| self.processes.get(&pid));
            let tasks = process.into_iter().flat_map(EngineProcess::tasks);
            let mut of_offer = tasks.filter(|task| task.offer == offer);
            of_offer.any(|task| task.is_to_stop && !task.interrupted)
        };
        machine.on_due(self.now, is_open, &mut again);
        self.interrupts.insert(host, machine);
        if is_due {
            self.wait_for_interrupts(host);
        }
        for engine in again {
            if let Some(pid) = self.process_of(host, engine) {
                self.signal(pid);
            }
        }
    }

    /// A process gets the signal for its interrupts. One that comes right before a blocking call has no effect.
    fn signal(&mut self, pid: u32) {
        let is_lost = self.random.chance(30);
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return;
        };
        let mut follows = Vec::new();
        for waiting in process.stack.iter_mut().filter(|r| r.is_to_stop) {
            // It reacts when it is its turn.
            waiting.interrupted |= !self.jobs[waiting.job as usize].stubborn;
            follows.push(Event::GoOn(pid));
        }
        let running = process.running.as_mut();
        if let Some(running) = running.filter(|r| r.is_to_stop)
            && !self.jobs[running.job as usize].stubborn
        {
            if is_lost && running.lost_signals < MAX_LOST_SIGNALS {
                running.lost_signals += 1;
            } else {
                running.interrupted = true;
                follows.push(Event::TaskEnds(pid, running.run));
            }
        }
        for event in follows {
            self.after(1000, event);
        }
    }

    /// By now a task that heeds interrupts must have acted on one.
    pub(crate) fn has_acted(&mut self, pid: u32, offer: u32) -> Result<(), String> {
        let host = self.processes.get(&pid).map(|p| p.host);
        let node = match host {
            Some(HostId::CONTROLLER) | None => Actor::Controller,
            Some(host) => Actor::Relay(host),
        };
        let links = &self.links_to_hosts;
        let stopped_until = links
            .last_stop(node)
            .max(links.last_stop(Actor::Engine(pid)));
        if stopped_until + INTERRUPTED_NS > self.now {
            let delay = stopped_until + INTERRUPTED_NS - self.now;
            self.after(delay, Event::HasActed(pid, offer));
            return Ok(());
        }
        let process = self.processes.get(&pid).filter(|p| p.alive);
        let process = process.filter(|p| self.process_of(p.host, p.engine) == Some(pid));
        let mut tasks = process.into_iter().flat_map(EngineProcess::tasks);
        let heeds = |job: u64| !self.jobs[job as usize].stubborn;
        match tasks.find(|task| task.offer == offer && !task.interrupted && heeds(task.job)) {
            None => Ok(()),
            Some(task) => Err(format!(
                "{:?} was not told of its interrupt again",
                task.key
            )),
        }
    }

    pub(crate) fn task_ends(&mut self, pid: u32, run: u64) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        let Some(running) = process.running.take_if(|r| r.run == run) else {
            return Ok(());
        };
        let job = &self.jobs[running.job as usize];
        let starts = match job.options.mode {
            Mode::Each => (job.index, Some(process.engine)),
            Mode::Balanced => (job.index, None),
        };
        let first = self.starts.get(&starts) == Some(&1);
        let status = match job.fate {
            _ if running.interrupted => Status::Error,
            Fate::Crash => {
                self.end_process(pid, None, Some(11));
                return Ok(());
            }
            _ if job.is_unmet_on(process.engine) => Status::Unmet,
            Fate::Raise => Status::Error,
            Fate::RaiseOnce if first => Status::Error,
            _ => Status::Ok,
        };
        let mut payload = Payload::default();
        match status {
            Status::Unmet => *self.unmet.entry(job.index).or_default() += 1,
            Status::Ok => {
                payload.bytes = Job::value(job.index, process.functions[&running.function]);
                if job.is_large && process.host != HostId::CONTROLLER {
                    self.last_value += 1;
                    payload
                        .segments
                        .push(object_of(process.host, self.last_value));
                }
            }
            Status::Error => payload.bytes = Job::error(job.index),
            _ => {}
        }
        process.finished.push(DoneRecord {
            key: running.key,
            status,
            started_ns: running.started_ns,
            completed_ns: self.now,
            cpu_ns: 0,
            payload,
        });
        process.nesting.leave(&running.outer);
        let (task_ns, n_finished) = (self.now - running.started_ns, process.finished.len());
        process
            .last_task
            .on_ended(FunctionId(running.function), task_ns);
        if (process.flushing).on_reply(n_finished, task_ns, self.now) {
            self.flush(pid);
        }
        self.go_on(pid)
    }

    /// Results that an engine holds back do not wait for a task that may be long.
    fn before_user_code(&mut self, pid: u32, function: FunctionId) {
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        let expected_ns = process.last_task.expected_ns(function);
        let is_short = process.flushing.is_short(expected_ns);
        match process.flushing.before_user_code(is_short) {
            Before::Nothing => {}
            Before::Send => self.flush(pid),
            Before::WakeFlusher if self.plan.mutation == Mutation::FlushersSleep => {}
            Before::WakeFlusher => self.flusher_turns(pid),
        }
    }

    /// An engine's flusher looks what it is needed for.
    fn flusher_turns(&mut self, pid: u32) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let (turn, number) = (process.flushing.turn(now), process.flusher.1 + 1);
        process.flusher = (turn, number);
        if let Turn::Trim(pause_ns) | Turn::Check(pause_ns) = turn {
            self.after(pause_ns, Event::Flush(pid, number));
        }
    }

    /// It has paused without being woken.
    pub(crate) fn flusher_acts(&mut self, pid: u32, number: u64) {
        let now = self.now;
        let process = self.processes.get(&pid).filter(|p| p.alive);
        let Some(process) = process.filter(|p| p.flusher.1 == number) else {
            return;
        };
        if matches!(process.flusher.0, Turn::Trim(_)) || process.flushing.is_due(now) {
            self.flush(pid);
        }
        if let Some(process) = self.processes.get(&pid) {
            process.flushing.on_done();
        }
        self.flusher_turns(pid);
    }

    pub(crate) fn flush(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        process.flushing.on_flushed(None);
        let stopped_until = self.links_to_hosts.last_stop(Actor::Engine(pid));
        let oldest = process.finished.first().filter(|_| process.alive);
        if let Some(oldest) = oldest.filter(|oldest| oldest.completed_ns > stopped_until) {
            let held_ns = self.now - oldest.completed_ns;
            self.longest_held_ns = self.longest_held_ns.max(held_ns);
        }
        let (engine, host, linked) = (process.engine, process.host, process.linked);
        for record in std::mem::take(&mut process.finished) {
            let piece = OutputRecord {
                task: record.key.0,
                engine,
                stream: 1,
                bytes: Bytes::from(vec![b'x'; JOB_OUTPUT_BYTES as usize / 2]),
            };
            let written = Input::Output {
                host,
                engine,
                record: piece,
            };
            let done = Input::Done {
                host,
                engine,
                record,
                copy: None,
            };
            for input in [written.clone(), written, done] {
                if host == HostId::CONTROLLER {
                    let event = Event::Node(NodeEvent::FromEngine(pid, input));
                    self.send(Link::FromEngine(pid), event);
                } else if linked {
                    self.relay_says(host, input);
                }
            }
        }
    }
}

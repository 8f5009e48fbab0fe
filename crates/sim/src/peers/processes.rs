//! Engine processes and the fork server: how they handle messages, and how they end.

use broadleaf_core::{HostEvent, Input, Nanos};
use broadleaf_proto::Mode;
use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::ids::{EngineId, HostId};
use broadleaf_proto::relay::{RelayEvent, RelayedDone};
use broadleaf_proto::task::{DoneRecord, OutputRecord, Payload, Status};
use bytes::Bytes;

use crate::cluster::{Cluster, EngineMessage, Event, Link, NodeEvent};
use crate::peers::engine::{EngineProcess, Running};
use crate::work::job::{Fate, JOB_OUTPUT_BYTES, Job, Preparation, index_of};

const MS: Nanos = 1_000_000;

impl Cluster {
    pub(crate) fn spawn(&mut self, engine: EngineId) {
        let Some(number) = self.fork_server else {
            return;
        };
        if let Some(event) = self.fails_to_start(engine) {
            self.send(Link::FromForkServer(number), Event::Node(event));
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
    pub(crate) fn fails_to_start(&mut self, engine: EngineId) -> Option<NodeEvent> {
        if !self.random.chance(self.plan.no_process_percent) {
            return None;
        }
        self.deaths += 1;
        let reason = "no process".into();
        Some(NodeEvent::FromForkServer(ForkServerEvent::NotStarted {
            engine,
            reason,
        }))
    }

    pub(crate) fn end_process(&mut self, pid: u32, code: Option<i32>, signal: Option<i32>) {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return;
        };
        process.alive = false;
        process.running = None;
        process.stack.clear();
        process.inbox.clear();
        let (engine, host) = (process.engine, process.host);
        self.deaths += 1;
        self.close_link(pid);
        self.end_clients_of(pid);
        let watched = self.processes.get(&pid).is_some_and(|p| p.watched);
        let link = if host == HostId::CONTROLLER {
            self.fork_server
                .filter(|_| watched)
                .map(Link::FromForkServer)
        } else {
            Some(Link::FromHost(host))
        };
        if let Some(link) = link {
            let event = ForkServerEvent::Exited {
                engine,
                pid,
                code,
                signal,
                out_of_memory: false,
                last_output: "last words".into(),
            };
            let event = match link {
                Link::FromHost(host) => {
                    NodeEvent::FromRelay(host, HostEvent::Event(RelayEvent::ForkServer(event)))
                }
                _ => NodeEvent::FromForkServer(event),
            };
            self.send(link, Event::Node(event));
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
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        match message {
            EngineMessage::Function(record) => {
                let body = index_of(&record.body);
                if let Some(made) = Preparation::of_body(body) {
                    let name = (made.client, made.name);
                    process.prepared.insert(name, made.version);
                    return Ok(());
                }
                process.functions.insert(record.function.0, body);
            }
            EngineMessage::Assign(record) => {
                if !process.functions.contains_key(&record.function.0) {
                    return Err(format!("{:?} is unknown to process {pid}", record.function));
                }
                process.inbox.push_back(record);
                self.go_on(pid)?;
            }
            EngineMessage::Stop => {
                process.stopping = true;
                if process.running.is_none() && process.stack.is_empty() {
                    self.flush(pid);
                    self.end_process(pid, Some(0), None);
                }
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
        let Some(record) = process.claim_next() else {
            self.flush(pid);
            return Ok(());
        };
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
            depth: record.depth,
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

    pub(crate) fn interrupt(&mut self, engine: EngineId, offer: u32) {
        let process = self
            .links
            .get(&engine)
            .and_then(|pid| self.processes.get_mut(pid));
        if let Some(pid) = process.map(|p| p.pid) {
            self.interrupt_process(pid, offer);
        }
    }

    pub(crate) fn interrupt_process(&mut self, pid: u32, offer: u32) {
        let process = self.processes.get_mut(&pid);
        let Some(process) = process.filter(|p| p.alive) else {
            return;
        };
        if let Some(waiting) = process.stack.iter_mut().find(|r| r.offer == offer) {
            // It reacts when it is its turn.
            waiting.interrupted |= !self.jobs[waiting.job as usize].stubborn;
            self.after(1000, Event::GoOn(pid));
            return;
        }
        let Some(running) = process.running.as_mut().filter(|r| r.offer == offer) else {
            return;
        };
        if !self.jobs[running.job as usize].stubborn {
            running.interrupted = true;
            let run = running.run;
            self.after(1000, Event::TaskEnds(pid, run));
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
        let stopping = process.stopping && process.stack.is_empty();
        // An engine may hold a result back while it runs the next task, for a bounded time.
        if stopping || self.random.chance(70) {
            self.flush(pid);
        } else {
            let delay = self.random.time(5 * MS);
            self.after(delay, Event::Flush(pid));
        }
        if stopping {
            self.end_process(pid, Some(0), None);
            return Ok(());
        }
        self.go_on(pid)
    }

    pub(crate) fn flush(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let (engine, host, linked) = (process.engine, process.host, process.linked);
        for record in std::mem::take(&mut process.finished) {
            let piece = OutputRecord {
                task: record.key.0,
                engine,
                stream: 1,
                bytes: Bytes::from(vec![b'x'; JOB_OUTPUT_BYTES as usize / 2]),
            };
            if host != HostId::CONTROLLER {
                let written = HostEvent::Output(piece);
                let done = HostEvent::Done(RelayedDone { engine, record });
                for news in [written.clone(), written, done] {
                    if linked {
                        let event = Event::Node(NodeEvent::FromRelay(host, news));
                        self.send(Link::FromHost(host), event);
                    }
                }
                continue;
            }
            let written = Input::Output {
                engine,
                record: piece,
            };
            for input in [
                written.clone(),
                written,
                Input::Done {
                    engine,
                    record,
                    copy: None,
                },
            ] {
                let event = Event::Node(NodeEvent::FromEngine(pid, input));
                self.send(Link::FromEngine(pid), event);
            }
        }
    }
}

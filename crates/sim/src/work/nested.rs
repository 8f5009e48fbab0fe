//! Simulated tasks that submit tasks and wait for them, and engines that run others in the
//! meantime.

use std::collections::btree_map::Entry;

use broadleaf_core::{Input, Nanos};
use broadleaf_proto::control::ControlRequest;
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{ClientId, HostId, TaskSeq};

use crate::Mutation;
use crate::cluster::{Cluster, Event, Link, NodeEvent};
use crate::peers::client::Client;
use crate::peers::engine::Running;
use crate::work::job::Fate;

const MS: Nanos = 1_000_000;
/// Ids of clients that belong to tasks start here.
const FIRST_NESTED: u32 = 1_000;
/// Tasks nested this deep submit none.
pub(crate) const DEEPEST: u16 = 3;

/// What a task waits for.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    client: ClientId,
    seqs: Vec<TaskSeq>,
}

/// Whether a client belongs to a task.
pub(crate) fn is_nested(client: ClientId) -> bool {
    client.0 >= FIRST_NESTED
}

/// The client of the tasks of one depth in one process.
fn client_of(pid: u32, depth: u16) -> ClientId {
    ClientId(FIRST_NESTED + pid * (u32::from(DEEPEST) + 1) + u32::from(depth))
}

fn process_of(client: ClientId) -> u32 {
    (client.0 - FIRST_NESTED) / (u32::from(DEEPEST) + 1)
}

impl Cluster {
    /// The running task submits others and waits for them.
    pub(crate) fn task_nests(&mut self, pid: u32, run: u64) -> Result<(), String> {
        let process = self.processes.get(&pid).filter(|p| p.alive);
        let running = process.and_then(|p| p.running.as_ref());
        let Some(running) = running.filter(|r| r.run == run && !r.interrupted) else {
            return Ok(());
        };
        let (depth, n) = (running.depth, self.jobs[running.job as usize].children);
        let client = client_of(pid, depth);
        if let Entry::Vacant(entry) = self.clients.entry(client) {
            entry.insert(Client::new(client, 0));
            self.introduce(client);
        }
        let mut seqs = Vec::new();
        for _ in 0..n {
            seqs.extend(self.submit(client, depth + 1));
        }
        let process = self.processes.get_mut(&pid);
        let Some((process, mut running)) =
            process.and_then(|p| p.running.take().map(|running| (p, running)))
        else {
            return Ok(());
        };
        running.wait = Some(Wait { client, seqs });
        process.stack.push(running);
        let said = process.begin_wait();
        if let Some(key) = said.filter(|_| self.plan.mutation != Mutation::WaitsUnsaid) {
            self.say(pid, EngineEvent::WaitStarted(key));
        }
        self.go_on(pid)
    }

    /// The engine's next step: it continues the task that waited, or starts another.
    pub(crate) fn go_on(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get(&pid) else {
            return Ok(());
        };
        if !process.alive || process.running.is_some() {
            return Ok(());
        }
        if let Some(top) = process.stack.last()
            && (top.interrupted || self.has_all(top))
        {
            self.resume(pid);
            return Ok(());
        }
        self.start_next(pid)
    }

    fn has_all(&self, waiting: &Running) -> bool {
        let Some(wait) = &waiting.wait else {
            return true;
        };
        let client = self.clients.get(&wait.client);
        client.is_none_or(|client| !wait.seqs.iter().any(|seq| client.is_unresolved(*seq)))
    }

    fn resume(&mut self, pid: u32) {
        self.runs += 1;
        let run = self.runs;
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let Some(mut running) = process.stack.pop() else {
            return;
        };
        process.nesting.end_wait();
        running.run = run;
        let (key, job, interrupted) = (running.key, running.job, running.interrupted);
        let wait = running.wait.take();
        process.running = Some(running);
        self.say(pid, EngineEvent::WaitEnded(key));
        let rest = if interrupted {
            1_000
        } else {
            self.random.time(20 * MS)
        };
        if interrupted || self.jobs[job as usize].fate != Fate::Hang {
            self.after(rest, Event::TaskEnds(pid, run));
        }
        if let Some(wait) = wait.filter(|_| interrupted && self.random.chance(50)) {
            self.cancel_seqs(wait.client, wait.seqs);
        }
    }

    /// A client aborts those of its tasks that are not resolved.
    pub(crate) fn cancel_seqs(&mut self, id: ClientId, mut seqs: Vec<TaskSeq>) {
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.alive) else {
            return;
        };
        seqs.retain(|seq| client.is_unresolved(*seq));
        for seq in &seqs {
            if let Some(task) = client.tasks.get_mut(seq) {
                task.cancelled = true;
            }
        }
        self.request(id, ControlRequest::Cancel(seqs));
    }

    /// A result has arrived at a client: if the client belongs to a task, the task may continue.
    pub(crate) fn on_client_result(&mut self, client: ClientId) -> Result<(), String> {
        if !is_nested(client) {
            return Ok(());
        }
        self.go_on(process_of(client))
    }

    /// The clients of a process's tasks end with it.
    pub(crate) fn end_clients_of(&mut self, pid: u32) {
        for depth in 0..=DEEPEST {
            self.end_client(client_of(pid, depth));
        }
    }

    fn say(&mut self, pid: u32, event: EngineEvent) {
        self.flush(pid);
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        let (engine, host, linked) = (process.engine, process.host, process.linked);
        let report = EngineReport::Waits { engine, event };
        if host == HostId::CONTROLLER {
            let waits = Input::Report { host, report };
            let event = Event::Node(NodeEvent::FromEngine(pid, waits));
            self.send(Link::FromEngine(pid), event);
        } else if linked {
            self.relay_reports(host, report);
        }
    }
}

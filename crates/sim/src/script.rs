//! What clients do, and what goes wrong, chosen at random.

use broadleaf_core::{Input, Nanos};
use broadleaf_proto::control::{ControlRequest, DefineOptions};
use broadleaf_proto::ids::{ClientId, EngineId, FunctionHash, FunctionId, OptionsId, TaskSeq};
use broadleaf_proto::task::{FunctionRecord, Payload, SubmitRecord};
use broadleaf_proto::{DependencyRule, Mode, TargetSet, TaskOptions};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::cluster::{Cluster, Event, Link, NodeEvent};
use crate::peers::client::{Client, Copy, Expected};
use crate::work::job::{Fate, Job, Preparation};
use crate::work::nested::DEEPEST;

const MS: Nanos = 1_000_000;
/// The client that is never killed and stops the cluster at the end.
const OPERATOR: ClientId = ClientId(0);

impl Cluster {
    fn tell(&mut self, client: ClientId, input: Input) {
        self.send(
            Link::FromClient(client),
            Event::Node(NodeEvent::Input(input)),
        );
    }

    pub(crate) fn client_acts(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            self.start_client(id);
            return;
        };
        if !client.alive || client.bursts_left == 0 {
            return;
        }
        let n = 1 + self.random.below(8);
        for _ in 0..n {
            self.submit(id, 0);
        }
        if self.random.chance(30) {
            self.cancel_some(id);
        }
        if self.random.chance(20) {
            self.ask(id);
        }
        if self.random.chance(20) {
            self.prepare(id);
        }
        if self.random.chance(30) {
            self.copy_some(id);
        }
        if self.random.chance(10) {
            self.request(id, ControlRequest::Leave);
        }
        if self.random.chance(15) {
            self.tell(
                id,
                Input::ClientCongested {
                    client: id,
                    congested: true,
                },
            );
            self.tell(
                id,
                Input::ClientCongested {
                    client: id,
                    congested: false,
                },
            );
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.bursts_left -= 1;
        }
        let pause = self.random.time(200 * MS);
        self.after(pause, Event::ClientActs(id));
    }

    fn start_client(&mut self, id: ClientId) {
        let bursts = self.random.below(self.plan.bursts.into()) as u32;
        self.clients.insert(id, Client::new(id, bursts));
        self.introduce(id);
        self.after(0, Event::ClientActs(id));
    }

    /// Connects a client and defines its functions.
    pub(crate) fn introduce(&mut self, id: ClientId) {
        let name = format!("client {}", id.0);
        self.tell(id, Input::ClientUp { client: id, name });
        for function in 0..self.plan.n_functions {
            // Some functions are shared by clients, some are not.
            let body = u64::from(function) + u64::from(function % 2 * id.0 * 100);
            let mut hash = [0; 16];
            hash[..8].copy_from_slice(&body.to_le_bytes());
            let record = FunctionRecord {
                function: FunctionId(function),
                hash: FunctionHash(hash),
                name: Bytes::new(),
                body: Bytes::copy_from_slice(&body.to_le_bytes()),
            };
            self.tell(id, Input::Function { client: id, record });
        }
    }

    fn options(&mut self) -> TaskOptions {
        let mode = if self.random.chance(25) {
            Mode::Each
        } else {
            Mode::Balanced
        };
        let n = self.plan.config.n_engines + self.plan.n_hosts * self.plan.engines_per_host;
        let targets = if mode == Mode::Each || self.random.chance(20) {
            let first = self.random.below(n.into()) as u32;
            // Occasionally with one beyond the last, which does not exist.
            let beyond = u64::from(self.random.chance(10));
            let end = first + 1 + self.random.below(u64::from(n - first) + beyond) as u32;
            TargetSet::Ranges(vec![(EngineId(first), EngineId(end))])
        } else {
            TargetSet::All
        };
        let rule = |random: &mut crate::random::Random| DependencyRule {
            all: random.chance(70),
            success: random.chance(80),
            failure: random.chance(40),
        };
        let after = rule(&mut self.random);
        let follow = rule(&mut self.random);
        TaskOptions {
            mode,
            targets,
            label: String::new(),
            priority: self.random.below(3) as i32,
            retries: self.random.below(6).saturating_sub(3) as u32,
            timeout_ns: self
                .random
                .chance(20)
                .then(|| MS + self.random.time(500 * MS)),
            dependency_timeout_ns: self.random.chance(10).then(|| self.random.time(300 * MS)),
            after,
            follow,
            coalesce: self.random.chance(50),
            topology: broadleaf_proto::RequestedTopology::Auto,
        }
    }

    /// Submits a task, or one for each of its targets; returns their numbers.
    pub(crate) fn submit(&mut self, id: ClientId, depth: u16) -> Vec<TaskSeq> {
        let plain = self.random.chance(50);
        let options = if plain {
            TaskOptions::default()
        } else {
            self.options()
        };
        let fate = self.fate(options.timeout_ns.is_some() || depth == 0);
        let children = if depth < DEEPEST && self.plan.nests && self.random.chance(15) {
            1 + self.random.below(3)
        } else {
            0
        };
        let Some(client) = self.clients.get_mut(&id) else {
            return Vec::new();
        };
        let seq = client.next_seq;
        let job_index = self.jobs.len() as u64;
        let parts: Vec<Option<EngineId>> = match (&options.mode, &options.targets) {
            (Mode::Each, TargetSet::Ranges(ranges)) => ranges
                .iter()
                .flat_map(|(first, end)| first.0..end.0)
                .map(|e| Some(EngineId(e)))
                .collect(),
            _ => vec![None],
        };
        let prepared = client.preparations.values().copied().collect();
        let coalescing = options.coalesce && parts[0].is_some();
        let expected = parts.into_iter().map(|target| Expected {
            job: job_index,
            target,
            cancelled: false,
            copy: Copy::No,
            output_bytes: 0,
        });
        client.submit(expected.collect(), coalescing);
        let mut earlier = |percent: u64| {
            let mut list = SmallVec::new();
            if !plain && seq > 0 && self.random.chance(percent) {
                for _ in 0..=self.random.below(3) {
                    list.push(TaskSeq(self.random.below(seq)));
                }
            }
            list
        };
        let (after, follow) = (earlier(40), earlier(15));
        let function = self.random.below(self.plan.n_functions.into()) as u32;
        let job = Job {
            index: job_index,
            body: u64::from(function) + u64::from(function % 2 * id.0 * 100),
            duration_ns: 1 + self.random.time(300 * MS),
            fate,
            children,
            stubborn: self.random.chance(30),
            prepared,
            dependent: !after.is_empty() || !follow.is_empty(),
            is_large: self.random.chance(15),
            options: options.clone(),
        };
        let payload = Payload {
            bytes: job.arguments(),
            segments: job.segments(),
            lease: None,
        };
        let hangs = job.hangs_unless_aborted();
        self.jobs.push(job);
        let options_id = if plain {
            OptionsId(0)
        } else {
            OptionsId(1 + seq as u32 % 7)
        };
        if !plain {
            let define = DefineOptions {
                id: options_id,
                options,
            };
            self.tell(id, Input::Options { client: id, define });
        }
        let record = SubmitRecord {
            seq: TaskSeq(seq),
            function: FunctionId(function),
            options: options_id,
            depth,
            after,
            follow,
            payload,
        };
        self.tell(id, submission(id, record, fate));
        let end = self.clients.get(&id).map_or(seq, |c| c.next_seq);
        let seqs: Vec<TaskSeq> = (seq..end).map(TaskSeq).collect();
        if hangs {
            let after = self.random.time(400 * MS);
            self.after(after, Event::ClientAborts(id, seqs.clone()));
        }
        seqs
    }

    /// How a task ends, if nothing else ends it.
    fn fate(&mut self, may_hang: bool) -> Fate {
        match self.random.below(40) {
            0..4 => Fate::Raise,
            4..7 => Fate::RaiseOnce,
            7 => Fate::Crash,
            8..10 if may_hang => Fate::Hang,
            10 | 11 => Fate::UnmetOnEven,
            12 => Fate::UnmetEverywhere,
            13 => Fate::Incomplete,
            _ => Fate::Return,
        }
    }

    fn prepare(&mut self, id: ClientId) {
        let name = self.random.below(2) as u16;
        let reload = self.random.chance(30);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.n_preparations += 1;
        let version = client.n_preparations;
        let preparation = Preparation {
            client: id,
            name,
            version,
        };
        client.preparations.insert(name, preparation);
        let function = FunctionId(self.plan.n_functions + version);
        let body = preparation.body().to_le_bytes();
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&body);
        let record = FunctionRecord {
            function,
            hash: FunctionHash(hash),
            name: Bytes::new(),
            body: Bytes::copy_from_slice(&body),
        };
        self.tell(id, Input::Function { client: id, record });
        let name = name.to_string();
        self.request(
            id,
            ControlRequest::Prepare {
                name,
                function,
                reload,
            },
        );
    }

    fn cancel_some(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let open: Vec<TaskSeq> = client.unresolved().collect();
        let n = 1 + self.random.below(3);
        let chosen: Vec<TaskSeq> = (0..n)
            .filter_map(|_| {
                open.get(self.random.below(open.len() as u64) as usize)
                    .copied()
            })
            .collect();
        for seq in &chosen {
            if let Some(task) = client.tasks.get_mut(seq) {
                task.cancelled = true;
            }
        }
        let how = if self.random.chance(50) {
            ControlRequest::Cancel
        } else {
            ControlRequest::InterruptTasks
        };
        self.request(id, how(chosen));
    }

    /// Requests the results of tasks of any client, or reruns them.
    fn copy_some(&mut self, id: ClientId) {
        let run_again = self.random.chance(40);
        let n = 1 + self.random.below(4);
        let mut names = Vec::new();
        let mut copies = Vec::new();
        for _ in 0..n {
            let owner = ClientId(self.random.below(self.plan.n_clients.into()) as u32);
            let Some(known) = self.clients.get(&owner).filter(|c| c.next_seq > 0) else {
                continue;
            };
            // Mostly recent ones: live tasks, and those in the result store.
            let back = self.random.below(known.next_seq.min(20)) + 1;
            let seq = TaskSeq(known.next_seq - back);
            let Some(original) = known.tasks.get(&seq) else {
                continue;
            };
            if run_again && self.jobs[original.job as usize].hangs_unless_aborted() {
                continue;
            }
            names.push((owner, seq));
            copies.push(Expected {
                cancelled: false,
                copy: if run_again {
                    Copy::Rerun
                } else {
                    Copy::Subscribed((owner, seq))
                },
                output_bytes: 0,
                ..original.clone()
            });
        }
        if run_again {
            for copy in &copies {
                *self.reruns.entry(copy.job).or_default() += 1;
            }
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let first = client.submit(copies, false);
        let tasks = names;
        self.request(
            id,
            if run_again {
                ControlRequest::Resubmit {
                    first,
                    tasks,
                    depth: 0,
                }
            } else {
                ControlRequest::Subscribe { first, tasks }
            },
        );
    }

    fn ask(&mut self, id: ClientId) {
        let n = self.plan.config.n_engines + self.plan.n_hosts * self.plan.engines_per_host;
        let one = EngineId(self.random.below(n.into()) as u32);
        let one = TargetSet::Ranges(vec![(one, EngineId(one.0 + 1))]);
        let seq = self.clients.get(&id).map_or(0, |c| c.next_seq);
        let request = match self.random.below(18) {
            0 => {
                self.has_interrupted_all = true;
                ControlRequest::Interrupt(TargetSet::All)
            }
            1 => ControlRequest::Signal(one, 9),
            2 => ControlRequest::AddEngines(1),
            3 if self.random.chance(50) => ControlRequest::RestartEngines(TargetSet::All),
            3 => ControlRequest::RestartEngines(one),
            4 if self.random.chance(30) => ControlRequest::StopEngines(one),
            5 => ControlRequest::QueueStatus,
            6 => ControlRequest::Records(None),
            7 => ControlRequest::Records(Some(vec![(id, TaskSeq(self.random.below(seq)))])),
            8 => ControlRequest::Forget(Some(vec![(id, TaskSeq(self.random.below(seq)))])),
            10..=11 => self.drain_some(one),
            12 => {
                let pause = self.random.time(2_000 * MS);
                self.after(pause, Event::AwaitsNoMore(id));
                ControlRequest::AwaitEngines(true)
            }
            9 if self.random.chance(20) => ControlRequest::Forget(None),
            13 if self.random.chance(50) => ControlRequest::Notice {
                about: format!("host {}", self.random.below(4)),
                text: "walltime".repeat(self.random.below(3) as usize),
            },
            13 => ControlRequest::Noticed("host 1".to_owned()),
            14 => return self.tell(id, Input::Observed),
            15 => ControlRequest::Written {
                engine: EngineId(self.random.below(u64::from(n) + 1) as u32),
                seen: None,
            },
            _ => ControlRequest::Explain(TaskSeq(self.random.below(seq))),
        };
        self.request(id, request);
    }

    /// Releases an engine, a host or, rarely, all engines.
    fn drain_some(&mut self, one: TargetSet) -> ControlRequest {
        let mut hosts: Vec<_> = self.hosts.keys().copied().collect();
        if self.random.chance(50) {
            hosts.clear();
        }
        hosts.truncate(1);
        let targets = match self.random.below(100) {
            0..5 => TargetSet::All,
            5..50 => one,
            _ => TargetSet::Ranges(Vec::new()),
        };
        self.drained += 1;
        ControlRequest::Drain {
            targets,
            hosts,
            within_ns: self.random.chance(50).then(|| self.random.time(1_000 * MS)),
            stateless: self.random.chance(80),
        }
    }

    pub(crate) fn request(&mut self, id: ClientId, request: ControlRequest) {
        let number = self.random.next();
        if let Some(client) = self.clients.get_mut(&id) {
            client.requests.insert(number);
        }
        self.tell(
            id,
            Input::Request {
                client: id,
                number,
                request,
            },
        );
    }

    pub(crate) fn request_shutdown(&mut self, id: ClientId) {
        self.request(id, ControlRequest::Shutdown);
    }

    /// Kills a process or a link.
    pub(crate) fn fault(&mut self) {
        let alive: Vec<u32> = self
            .processes
            .values()
            .filter(|p| p.alive)
            .map(|p| p.pid)
            .collect();
        let pid = alive
            .get(self.random.below(alive.len() as u64) as usize)
            .copied();
        match (self.random.below(10), pid) {
            (0..4, Some(pid)) => self.end_process(pid, None, Some(9)),
            (4..6, Some(pid)) => self.lose_link(pid),
            // The cluster ends with it, so most runs have none of these.
            (6, _) if self.random.chance(10) => {
                self.stopping = true;
                self.is_orphaned = true;
                self.end_fork_server();
            }
            (9, _) => {
                let hosts: Vec<_> = self.hosts.keys().copied().collect();
                if let Some(host) = hosts.get(self.random.below(hosts.len() as u64) as usize) {
                    self.lose_host(*host);
                }
            }
            (7..9, _) => {
                let id = ClientId(self.random.below(self.plan.n_clients.into()) as u32);
                if id != OPERATOR {
                    self.end_client(id);
                }
            }
            _ => {}
        }
    }
}

/// The input that a record becomes for the controller.
fn submission(client: ClientId, record: SubmitRecord, fate: Fate) -> Input {
    if fate != Fate::Incomplete {
        return Input::Submit { client, record };
    }
    Input::SubmitIncomplete {
        client,
        record,
        reason: "no memory".to_owned(),
    }
}

//! What a client sends: sets of options, functions, tasks, requests. Whatever it asks for, it alone is refused, the
//! limits on its unresolved tasks and bytes hold, and the answers are not many times as long as the messages.

use broadleaf_core::{Input, Output};
use broadleaf_proto::control::{
    self, ControlRequest, DefineOptions, DependencyRule, RequestedTopology, TargetSet, TaskName,
};
use broadleaf_proto::task::{FunctionRecord, Payload};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{
    ClientId, EngineId, FrameKind, FunctionHash, FunctionId, Mode, OptionsId, SegmentId,
    SegmentRef, SubmitRecord, TaskOptions, TaskSeq,
};
use bytes::Bytes;
use smallvec::SmallVec;

use super::super::choices::Choices;
use super::world::{CLIENT, N_ENGINES, OTHER_CLIENT, World};

/// Maximum size of the answers to one message, besides what is allowed for its own length and for each live or stored
/// task.
const ANSWER_BYTES: usize = 16 * 1024;
/// Bytes of a record in a reply, with the longest label.
const RECORD_BYTES: usize = 1200;

/// The first byte says whether frames follow, or choices.
pub fn run(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let mut trial = Trial {
        world: World::new(),
        next_seq: 100,
        n_tasks: 0,
    };
    trial.n_tasks = trial.count_tasks();
    if mode % 2 == 0 {
        trial.frames(data);
    } else {
        let mut choices = Choices::new(data);
        while !choices.is_empty() {
            let (input, bytes) = trial.choose(&mut choices);
            trial.tell(input, bytes);
        }
    }
    trial.somebody_else_is_served();
}

struct Trial {
    world: World,
    next_seq: u64,
    /// Live and stored tasks after the last message.
    n_tasks: usize,
}

impl Trial {
    fn frames(&mut self, mut data: &[u8]) {
        while let [kind, low, high, rest @ ..] = data {
            let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (body, rest) = rest.split_at(len);
            data = rest;
            let Ok(kind) = FrameKind::try_from(*kind) else {
                return;
            };
            if self.frame(kind, body).is_none() {
                return; // The link is closed.
            }
        }
    }

    fn frame(&mut self, kind: FrameKind, body: &[u8]) -> Option<()> {
        let client = CLIENT;
        let mut reader = Reader::new(Bytes::copy_from_slice(body));
        match kind {
            FrameKind::Submit => {
                while !reader.is_empty() {
                    let record = SubmitRecord::decode(&mut reader).ok()?;
                    self.tell(Input::Submit { client, record }, body.len());
                }
            }
            FrameKind::Function => {
                while !reader.is_empty() {
                    let record = FunctionRecord::decode(&mut reader).ok()?;
                    self.tell(Input::Function { client, record }, body.len());
                }
            }
            FrameKind::Options => {
                let define = control::decode(body).ok()?;
                self.tell(Input::Options { client, define }, body.len());
            }
            FrameKind::Request => {
                let (number, request) = control::decode(body).ok()?;
                self.request(number, request, body.len());
            }
            _ => return None,
        }
        Some(())
    }

    fn request(&mut self, number: u64, request: ControlRequest, bytes: usize) {
        // Any client may stop the cluster, and start or stop its engines: that is not tried.
        if matches!(
            request,
            ControlRequest::Shutdown
                | ControlRequest::AddEngines(_)
                | ControlRequest::StopEngines(_)
                | ControlRequest::RestartEngines(_)
        ) {
            return;
        }
        let client = CLIENT;
        let request = Input::Request {
            client,
            number,
            request,
        };
        self.tell(request, bytes);
    }

    fn tell(&mut self, input: Input, bytes: usize) {
        self.world.input(input);
        let mut answer_bytes = 0;
        let mut body = Vec::new();
        for output in self.world.out.drain(..) {
            body.clear();
            match output {
                Output::Result { record, .. } => record.encode(&mut body),
                Output::Refused { record, .. } => record.encode(&mut body),
                Output::Coalesced { record, .. } => record.encode(&mut body),
                Output::Reply { number, reply, .. } => body = control::encode(&(number, reply)),
                _ => {}
            }
            answer_bytes += body.len();
        }
        let n_before = self.n_tasks;
        self.n_tasks = self.count_tasks();
        let tasks = self.n_tasks.max(n_before);
        assert!(
            answer_bytes <= ANSWER_BYTES + 64 * bytes + RECORD_BYTES * tasks,
            "{answer_bytes} bytes answer {bytes}, with {tasks} tasks"
        );
        self.world.after_message();
        self.world.out.clear();
    }

    fn count_tasks(&self) -> usize {
        let counters = self.world.controller.counters();
        (counters.live + counters.kept_tasks) as usize
    }

    fn somebody_else_is_served(&mut self) {
        self.world.out.clear();
        let client = OTHER_CLIENT;
        let record = FunctionRecord {
            function: FunctionId(1),
            hash: FunctionHash([9; 16]),
            name: Bytes::new(),
            body: Bytes::from(vec![7; 1 << 16]),
        };
        // There is no room for this one besides the function that the client defined before.
        self.world.input(Input::Function { client, record });
        let record = FunctionRecord {
            function: FunctionId(2),
            hash: FunctionHash([10; 16]),
            name: Bytes::new(),
            body: Bytes::from(vec![7; 60_000]),
        };
        self.world.input(Input::Function { client, record });
        for (seq, function) in [(1000, 1), (1001, 2)] {
            let record = SubmitRecord {
                seq: TaskSeq(seq),
                function: FunctionId(function),
                options: OptionsId(0),
                depth: 0,
                after: SmallVec::new(),
                follow: SmallVec::new(),
                payload: Payload::default(),
            };
            self.world.input(Input::Submit { client, record });
        }
        let refused: Vec<u64> = self
            .world
            .out
            .iter()
            .filter_map(|output| match output {
                Output::Refused { client, record } if *client == OTHER_CLIENT => Some(record.seq.0),
                _ => None,
            })
            .collect();
        assert_eq!(refused, [1000]);
        self.world.check();
    }

    fn targets(choices: &mut Choices<'_>) -> TargetSet {
        if choices.below(4) == 0 {
            return TargetSet::All;
        }
        let engine = |choices: &mut Choices<'_>| match choices.below(4) {
            0 => EngineId(choices.number() as u32),
            _ => EngineId(choices.below(N_ENGINES + 2)),
        };
        let n = choices.below(6);
        let ranges = (0..n).map(|_| (engine(choices), engine(choices)));
        TargetSet::Ranges(ranges.collect())
    }

    fn options(choices: &mut Choices<'_>) -> TaskOptions {
        let rule = |bits: u8| DependencyRule {
            all: bits & 1 == 0,
            success: bits & 2 == 0,
            failure: bits & 4 == 0,
        };
        TaskOptions {
            mode: if choices.below(2) == 0 {
                Mode::Each
            } else {
                Mode::Balanced
            },
            targets: Self::targets(choices),
            label: choices.text(2000),
            priority: choices.number() as i32,
            retries: choices.number() as u32,
            timeout_ns: Some(choices.number()).filter(|n| *n > 3),
            dependency_timeout_ns: Some(choices.number()).filter(|n| *n > 3),
            after: rule(choices.byte()),
            follow: rule(choices.byte()),
            coalesce: choices.below(2) == 0,
            topology: RequestedTopology::Kary(choices.number() as u32),
        }
    }

    fn seq(&mut self, choices: &mut Choices<'_>) -> TaskSeq {
        if choices.below(8) == 0 {
            return TaskSeq(choices.number());
        }
        // Room for the parts of a broadcast.
        self.next_seq += 1 << 17;
        TaskSeq(self.next_seq)
    }

    fn earlier(&self, choices: &mut Choices<'_>) -> TaskSeq {
        match choices.below(4) {
            0 => TaskSeq(choices.number()),
            1 => TaskSeq(choices.below(12).into()),
            n => TaskSeq(self.next_seq.saturating_sub(u64::from(n - 2) << 17)),
        }
    }

    fn names(&self, choices: &mut Choices<'_>) -> Vec<TaskName> {
        let n = choices.below(6);
        let name = |_| (ClientId(choices.below(4)), self.earlier(choices));
        (0..n).map(name).collect()
    }

    fn choose(&mut self, choices: &mut Choices<'_>) -> (Input, usize) {
        let client = CLIENT;
        match choices.below(8) {
            0 => {
                let define = DefineOptions {
                    id: OptionsId(choices.below(6)),
                    options: Self::options(choices),
                };
                let bytes = control::encode(&define).len();
                (Input::Options { client, define }, bytes)
            }
            1 => {
                let n = choices.number() as usize % 70_000;
                let hash = [choices.byte(); 16];
                let record = FunctionRecord {
                    function: FunctionId(choices.below(8)),
                    hash: FunctionHash(hash),
                    name: Bytes::new(),
                    body: Bytes::from(vec![1; n]),
                };
                (Input::Function { client, record }, n)
            }
            2 | 3 => self.request_of_choice(choices),
            _ => {
                let seq = self.seq(choices);
                let after = self.dependencies(choices);
                let follow = self.dependencies(choices);
                let range = SegmentRef {
                    segment: SegmentId(choices.below(3).into()),
                    offset_bytes: choices.number(),
                    len_bytes: choices.number(),
                };
                let record = SubmitRecord {
                    seq,
                    function: FunctionId(choices.below(8)),
                    options: OptionsId(choices.below(6)),
                    depth: choices.below(64) as u16,
                    after,
                    follow,
                    payload: Payload {
                        bytes: Bytes::from(vec![0; choices.number() as usize % 4096]),
                        segments: (0..choices.below(3)).map(|_| range).collect(),
                        lease: None,
                    },
                };
                // The approximate length of the record: encoding it would take as long as handling it.
                let n_numbers = record.after.len() + record.follow.len();
                let bytes = 32 + 8 * n_numbers + record.payload.bytes.len();
                (Input::Submit { client, record }, bytes)
            }
        }
    }

    fn dependencies(&self, choices: &mut Choices<'_>) -> SmallVec<[TaskSeq; 0]> {
        let n = match choices.byte() {
            255 => 5000,
            n => usize::from(n % 4),
        };
        let on = self.earlier(choices);
        std::iter::repeat_n(on, n).collect()
    }

    fn request_of_choice(&mut self, choices: &mut Choices<'_>) -> (Input, usize) {
        let request = match choices.below(13) {
            0 => ControlRequest::Cancel(
                (0..choices.below(5))
                    .map(|_| self.earlier(choices))
                    .collect(),
            ),
            1 => ControlRequest::Interrupt(Self::targets(choices)),
            2 => ControlRequest::Explain(self.earlier(choices)),
            3 => ControlRequest::QueueStatus,
            4 => ControlRequest::Prepare {
                name: choices.text(3000),
                function: FunctionId(choices.below(8)),
                reload: choices.below(2) == 0,
            },
            5 => ControlRequest::Records(None),
            6 => ControlRequest::Records(Some(self.names(choices))),
            7 | 8 => ControlRequest::Subscribe {
                first: self.seq(choices),
                tasks: self.names(choices),
            },
            9 | 10 => ControlRequest::Resubmit {
                first: self.seq(choices),
                tasks: self.names(choices),
                depth: choices.number() as u16,
            },
            11 => ControlRequest::Forget(Some(self.names(choices))),
            _ => ControlRequest::Signal(Self::targets(choices), 0),
        };
        let number = 1;
        let bytes = control::encode(&(number, &request)).len();
        let client = CLIENT;
        let input = Input::Request {
            client,
            number,
            request,
        };
        (input, bytes)
    }
}

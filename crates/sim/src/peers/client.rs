//! A simulated client: what it submitted, and whether each answer is one that it may get.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use broadleaf_client::{Mismatch, Parts, Submitted, Table};
use broadleaf_proto::CoalescedRecord;
use broadleaf_proto::control::{
    self, DeathCause, DeathCertificate, RefusalReason, TaskName, TaskRecord,
};
use broadleaf_proto::ids::{ClientId, EngineId, TaskSeq};
use broadleaf_proto::task::{OutputRecord, ResultRecord, Status, dropped_notice};

use crate::work::job::{Fate, JOB_OUTPUT_BYTES, Job, Preparation};
use crate::work::nested::DEEPEST;

/// One task that must get a result.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Its job.
    pub job: u64,
    /// The target, for a part of mode `Each`.
    pub target: Option<EngineId>,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// How it came to belong to its client.
    pub copy: Copy,
    /// Bytes that its runs wrote: those that arrived, and those reported as dropped.
    pub output_bytes: u64,
}

impl Expected {
    /// Whether the output is that of one complete run, which wrote all its bytes, with every
    /// dropped byte reported. Of an earlier run, whose engine died, any part may have arrived.
    fn is_all_output_told(&self) -> bool {
        self.output_bytes >= JOB_OUTPUT_BYTES
    }
}

/// How a task came to belong to its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copy {
    /// The client submitted it.
    #[default]
    No,
    /// It belongs to another client; only its result was requested.
    Subscribed(TaskName),
    /// It was submitted before, perhaps by another client, and is run again.
    Rerun,
}

/// The state of a task whose result was subscribed to, as its own client sees it.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// How it ended, as far as its client knows.
    pub status: Option<Status>,
    /// Whether someone, or the end of its client, may have cancelled it.
    pub may_be_cancelled: bool,
}

type Request = Rc<RefCell<Parts<()>>>;

/// One client.
#[derive(Debug)]
pub struct Client {
    /// Its id.
    pub id: ClientId,
    /// Whether it is connected.
    pub alive: bool,
    /// The next task's number.
    pub next_seq: u64,
    /// Those without a result.
    table: Table<Request, ()>,
    /// By the number of their first task.
    submissions: BTreeMap<u64, Request>,
    /// Everything submitted.
    pub tasks: BTreeMap<TaskSeq, Expected>,
    /// Requests without a reply.
    pub requests: BTreeSet<u64>,
    /// Submissions that it has yet to make.
    pub bursts_left: u32,
    /// The preparations that engines should make for it, by name.
    pub preparations: BTreeMap<u16, Preparation>,
    /// Preparations it has defined.
    pub n_preparations: u32,
}

/// What the whole run may have done to a task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// A user sent an interrupt to engines.
    pub interrupts: bool,
    /// Shutdown was requested.
    pub stopping: bool,
    /// Number of times that the task was started.
    pub starts: u32,
    /// Whether it was offered to an engine after all its arguments had arrived.
    pub offered: bool,
    /// Number of times that it found its dependency unmet.
    pub unmet: u32,
    /// Engines that died.
    pub deaths: u32,
    /// Number of times that a rerun of the task was requested.
    pub reruns: u32,
    /// The task whose result was subscribed to.
    pub original: Option<Original>,
    /// Hosts that were lost: every offer there counts as started, whether it was or not.
    pub host_losses: u32,
}

impl Client {
    /// A connected client.
    pub fn new(id: ClientId, bursts_left: u32) -> Self {
        Self {
            id,
            alive: true,
            next_seq: 0,
            table: Table::default(),
            submissions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            requests: BTreeSet::new(),
            bursts_left,
            preparations: BTreeMap::new(),
            n_preparations: 0,
        }
    }

    /// Tasks without a result.
    pub fn unresolved(&self) -> impl Iterator<Item = TaskSeq> {
        self.table.seqs().into_iter().map(TaskSeq)
    }

    /// Whether a task has no result yet.
    pub fn is_unresolved(&self, seq: TaskSeq) -> bool {
        self.table.contains(seq.0)
    }

    /// How a task ended, if it has.
    pub fn status(&self, seq: TaskSeq) -> Option<Status> {
        let (first, request) = self.submissions.range(..=seq.0).next_back()?;
        request.borrow().status((seq.0 - first) as usize)
    }

    /// Submits tasks, perhaps such whose results may arrive together; returns the number of the first.
    pub fn submit(&mut self, tasks: Vec<Expected>, coalescing: bool) -> TaskSeq {
        let (first, len) = (self.next_seq, tasks.len());
        self.next_seq += len as u64;
        let parts = if coalescing {
            Parts::coalescing(len)
        } else {
            Parts::new(len)
        };
        let request = Rc::new(RefCell::new(parts));
        self.submissions.insert(first, Rc::clone(&request));
        self.table.insert(Submitted {
            seq: first,
            len,
            coalescing,
            weight_bytes: 0,
            claims: (),
            request,
        });
        self.tasks.extend((first..).map(TaskSeq).zip(tasks));
        TaskSeq(first)
    }

    /// Takes the result of one task.
    ///
    /// # Errors
    /// It was not submitted, or had ended.
    pub fn on_result(&mut self, record: &ResultRecord) -> Result<(), String> {
        let seq = record.seq.0;
        let Some(part) = self.table.remove(seq) else {
            let id = self.id.0;
            return Err(match self.status(record.seq) {
                Some(before) => format!("client {id} task {seq} had already ended {before:?}"),
                None => format!("client {id} got a result for {seq}, never submitted"),
            });
        };
        let first = self.submissions.range(..=seq).next_back();
        let index = first.map_or(0, |(first, _)| seq - first) as usize;
        part.request.borrow_mut().resolve(index, record.clone(), 0);
        Ok(())
    }

    /// Takes the results of a whole request.
    ///
    /// # Errors
    /// It was not submitted like that, or some of its tasks had ended.
    pub fn on_coalesced(&mut self, record: &CoalescedRecord) -> Result<(), String> {
        let (id, seq) = (self.id.0, record.seq.0);
        let wrong = |what: &str| Err(format!("client {id} got results from {seq} on: {what}"));
        match self.table.remove_together(seq, record.len()) {
            Err(Mismatch) => wrong("another number of them"),
            Ok(None) => wrong("of no request"),
            Ok(Some((_, n))) if n < record.len() as u64 => wrong("some had ended"),
            Ok(Some((parts, _))) => {
                let mut request = parts.request.borrow_mut();
                request.resolve_together(record.clone(), 0);
                Ok(())
            }
        }
    }

    /// Takes output.
    ///
    /// # Errors
    /// It belongs to no task.
    pub fn on_output(&mut self, record: &OutputRecord) -> Result<(), String> {
        let Some(task) = self.tasks.get_mut(&TaskSeq(record.task)) else {
            return Err(format!("output of {}, never submitted", record.task));
        };
        let text = String::from_utf8_lossy(&record.bytes);
        let said = (1..=JOB_OUTPUT_BYTES * 8).find(|n| text == dropped_notice(*n));
        task.output_bytes += said.unwrap_or(text.len() as u64);
        Ok(())
    }

    /// Whether it may get this result.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge(
        &self,
        record: &ResultRecord,
        jobs: &[Job],
        around: Circumstances,
    ) -> Result<(), String> {
        let id = self.id.0;
        let Some(task) = self.tasks.get(&record.seq) else {
            return Err(format!(
                "client {id} got a result for {:?}, never submitted",
                record.seq
            ));
        };
        let wrong = |what: &str| {
            Err(format!(
                "client {id} {:?} ended {:?}: {what}",
                record.seq, record.status
            ))
        };
        let is_copy = task.copy != Copy::No;
        if is_copy && record.status == Status::Refused && is_not_kept(record) {
            return Ok(());
        }
        let job = &jobs[task.job as usize];
        let retries = job.options.retries;
        if let Some(original) = around.original {
            return Self::judge_copy(record, job, original).or_else(|e| wrong(&e));
        }
        if around.starts > (1 + retries) * (1 + around.reruns) + around.unmet {
            return wrong(&format!(
                "started {} times with {retries} retries",
                around.starts
            ));
        }
        match record.status {
            Status::Ok if !task.is_all_output_told() => return wrong("output is missing"),
            Status::Ok => {
                if record.payload.bytes != Job::value(job.index, job.body) {
                    return wrong("the value of another task");
                }
                if task.target.is_some_and(|target| target != record.engine) {
                    return wrong("it did not run on its target");
                }
                match job.fate {
                    Fate::Return | Fate::RaiseOnce | Fate::UnmetOnEven => {}
                    fate => return wrong(&format!("it cannot return: {fate:?}")),
                }
            }
            Status::Error => {
                let raises = matches!(job.fate, Fate::Raise | Fate::RaiseOnce);
                if !raises && !around.interrupts {
                    return wrong("it does not raise");
                }
                if job.fate == Fate::RaiseOnce
                    && retries > 0
                    && around.deaths == 0
                    && !around.interrupts
                {
                    return wrong("it had a retry left");
                }
            }
            Status::Cancelled if !task.cancelled => return wrong("nobody cancelled it"),
            Status::Timeout => {
                let limits = (job.options.timeout_ns, job.options.dependency_timeout_ns);
                if limits == (None, None) {
                    return wrong("it has no timeout");
                }
                if limits.1.is_none() && !around.offered {
                    return wrong("its arguments were still on their way");
                }
            }
            Status::Refused => {
                return Self::judge_refusal(record, job, around).or_else(|e| wrong(&e));
            }
            Status::Lost => {
                let certificate: DeathCertificate = match control::decode(&record.payload.bytes) {
                    Ok(certificate) => certificate,
                    Err(error) => return wrong(&format!("no certificate: {error}")),
                };
                if around.deaths == 0 && around.host_losses == 0 {
                    return wrong("no engine died");
                }
                // An event of an engine that is being ended may take longer to arrive from a relay
                // than the controller waits.
                let is_slow = matches!(
                    certificate.cause,
                    DeathCause::Unresponsive | DeathCause::Stopped
                ) && certificate.host != "simulated";
                let surely = around.host_losses == 0 && !is_slow;
                if surely && certificate.task_started && around.starts == 0 {
                    return wrong(&format!("it was never started: {certificate:?}"));
                }
                let had_retries = around.starts <= retries && !around.stopping;
                if surely && certificate.task_started && had_retries {
                    return wrong(&format!("it had a retry left: {certificate:?}"));
                }
                if !certificate.task_started && task.target.is_none() {
                    return wrong("it was only waiting, and could run elsewhere");
                }
            }
            Status::Unmet => return wrong("that is not a valid status"),
            Status::Cancelled => {}
        }
        Ok(())
    }

    fn judge_copy(record: &ResultRecord, job: &Job, original: Original) -> Result<(), String> {
        if original
            .status
            .is_some_and(|status| status != record.status)
        {
            return Err(format!("the original ended {:?}", original.status));
        }
        if record.status == Status::Ok && record.payload.bytes != Job::value(job.index, job.body) {
            return Err("the value of another task".into());
        }
        if record.status == Status::Cancelled && !original.may_be_cancelled {
            return Err("nobody cancelled the original".into());
        }
        Ok(())
    }

    fn judge_refusal(
        record: &ResultRecord,
        job: &Job,
        around: Circumstances,
    ) -> Result<(), String> {
        let reason: RefusalReason =
            control::decode(&record.payload.bytes).map_err(|e| e.to_string())?;
        let fair = match &reason {
            RefusalReason::NoEngines | RefusalReason::NoSuchEngine(_) => true,
            RefusalReason::Undefined
            | RefusalReason::OverLimit
            | RefusalReason::InvalidDependency
            | RefusalReason::NotStored => false,
            RefusalReason::Undeliverable(_) => job.is_large || job.fate == Fate::Incomplete,
            RefusalReason::ImpossibleDependency => job.dependent,
            RefusalReason::UnmetEverywhere(_) => {
                matches!(job.fate, Fate::UnmetEverywhere | Fate::UnmetOnEven)
            }
            RefusalReason::Stopping => around.stopping,
        };
        if fair {
            Ok(())
        } else {
            Err(format!("no reason for {reason:?}"))
        }
    }
}

fn is_not_kept(record: &ResultRecord) -> bool {
    control::decode::<RefusalReason>(&record.payload.bytes) == Ok(RefusalReason::NotStored)
}

/// Checks what a controller reports about running tasks: each is on an engine and has not ended,
/// and an engine runs only as many as can be nested in one another.
///
/// # Errors
/// What is wrong with it.
pub fn check_running(records: &[TaskRecord]) -> Result<(), String> {
    let mut running = BTreeMap::new();
    for record in records.iter().filter(|record| record.is_running) {
        let n: &mut u16 = running.entry(record.engine).or_default();
        *n += 1;
        let nowhere = record.engine.0 == u32::MAX || record.status.is_some();
        if nowhere || *n > DEEPEST + 1 {
            return Err(format!("a task cannot run there: {record:?}"));
        }
    }
    Ok(())
}

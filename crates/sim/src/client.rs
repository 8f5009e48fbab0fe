//! A simulated client: what it submitted, and whether each answer is one it may get.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::control::{
    self, DeathCause, DeathCertificate, RefusalReason, TaskName, TaskRecord,
};
use broadleaf_proto::ids::{ClientId, EngineId, TaskSeq};
use broadleaf_proto::task::{OutputRecord, ResultRecord, Status, dropped_notice};

use crate::job::{Fate, JOB_OUTPUT_BYTES, Job, Preparation};
use crate::nested::DEEPEST;

/// One task that a result is due for.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Its job.
    pub job: u64,
    /// The target, for a part of mode `Each`.
    pub target: Option<EngineId>,
    /// The result's status, once it is here.
    pub status: Option<Status>,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// What it is a copy of.
    pub copy: Copy,
    /// Bytes that its tasks wrote: those that came, and those that were said to be dropped.
    pub output_bytes: u64,
}

impl Expected {
    /// Whether what came makes a whole run, which wrote all its bytes, and what was not passed on was said. Of a run before
    /// it, whose engine died, any part may have come.
    fn is_all_output_told(&self) -> bool {
        self.output_bytes >= JOB_OUTPUT_BYTES
    }
}

/// How a task came to its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copy {
    /// It was submitted.
    #[default]
    No,
    /// It is another's, of which the result alone was asked for.
    Subscribed(TaskName),
    /// It was submitted before, maybe by another, and is run again.
    Rerun,
}

/// How the task stands for its own client whose result was subscribed to.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// How it ended, as far as its client knows.
    pub status: Option<Status>,
    /// Whether somebody, or its client's end, may have cancelled it.
    pub may_be_cancelled: bool,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    /// Its id.
    pub id: ClientId,
    /// Whether it is connected.
    pub alive: bool,
    /// The next task's number.
    pub next_seq: u64,
    /// Everything submitted.
    pub tasks: BTreeMap<TaskSeq, Expected>,
    /// Requests without a reply.
    pub requests: BTreeSet<u64>,
    /// Submissions it has still to make.
    pub bursts_left: u32,
    /// What it has engines prepare, by name.
    pub preparations: BTreeMap<u16, Preparation>,
    /// Preparations it has defined.
    pub n_preparations: u32,
}

/// What the whole run may have done to a task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// A user's interrupt was sent at engines.
    pub interrupts: bool,
    /// Shutdown was requested.
    pub stopping: bool,
    /// Times that the task was started.
    pub starts: u32,
    /// Whether it was offered to an engine with all its arguments there.
    pub offered: bool,
    /// Times that it found itself unmet.
    pub unmet: u32,
    /// Engines that died.
    pub deaths: u32,
    /// Times that the task was asked to be run again.
    pub reruns: u32,
    /// The task whose result was subscribed to.
    pub original: Option<Original>,
    /// Hosts that were lost: what was offered there counts as started, whether it was or not.
    pub host_losses: u32,
}

impl Client {
    /// A connected client.
    pub fn new(id: ClientId, bursts_left: u32) -> Self {
        Self {
            id,
            alive: true,
            next_seq: 0,
            tasks: BTreeMap::new(),
            requests: BTreeSet::new(),
            bursts_left,
            preparations: BTreeMap::new(),
            n_preparations: 0,
        }
    }

    /// Tasks without a result.
    pub fn unresolved(&self) -> impl Iterator<Item = TaskSeq> {
        let open = self.tasks.iter().filter(|(_, t)| t.status.is_none());
        open.map(|(seq, _)| *seq)
    }

    /// Takes output.
    ///
    /// # Errors
    /// When it is of no task.
    pub fn on_output(&mut self, record: &OutputRecord) -> Result<(), String> {
        let Some(task) = self.tasks.get_mut(&TaskSeq(record.task)) else {
            return Err(format!("output of {}, never submitted", record.task));
        };
        let text = String::from_utf8_lossy(&record.bytes);
        let said = (1..=JOB_OUTPUT_BYTES * 8).find(|n| text == dropped_notice(*n));
        task.output_bytes += said.unwrap_or(text.len() as u64);
        Ok(())
    }

    /// Takes a result.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn on_result(
        &mut self,
        record: &ResultRecord,
        jobs: &[Job],
        around: Circumstances,
    ) -> Result<(), String> {
        let id = self.id.0;
        let Some(task) = self.tasks.get_mut(&record.seq) else {
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
        if let Some(before) = task.status {
            return wrong(&format!("it had already ended {before:?}"));
        }
        task.status = Some(record.status);
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
                    return wrong("another task's value");
                }
                if task.target.is_some_and(|target| target != record.engine) {
                    return wrong("it ran elsewhere than on its target");
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
                // News of an engine that is being ended may take longer from a relay than it is waited for.
                let is_slow = matches!(
                    certificate.cause,
                    DeathCause::KilledByTimeout | DeathCause::Stopped
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
            Status::Unmet => return wrong("that is not an ending"),
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
            return Err("another task's value".into());
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
            | RefusalReason::NotKept => false,
            RefusalReason::Undeliverable(_) => job.is_large,
            RefusalReason::ImpossibleDependency => job.dependent,
            RefusalReason::UnmetEverywhere => {
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
    control::decode::<RefusalReason>(&record.payload.bytes) == Ok(RefusalReason::NotKept)
}

/// What a controller says of running tasks: each is at an engine and has not ended, and an engine runs no more of them
/// than can be nested in one another.
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
            return Err(format!("cannot run there: {record:?}"));
        }
    }
    Ok(())
}

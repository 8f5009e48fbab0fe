//! Machines whose calls can be recorded.

use std::cell::RefCell;
use std::ops::Deref;
use std::slice;

use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, FunctionId, HostId, ObjectId, TaskKey};
use broadleaf_proto::task::{AssignRecord, DoneRecord, FunctionRecord, OutputRecord, Payload};
use serde::Serialize;

use crate::forms;
use crate::recording::{Answer, Call, RelayCall, ReturningCall, Said};
use crate::relay::{Arguments, Board, Freed, Inheritance, Relay, RelayAction};
use crate::returning::{Ending, Returned, Returning};
use crate::{Controller, Input, Nanos, Output};

/// Where a driver writes a recording.
pub trait Recorder {
    /// A call is about to be made.
    fn call(&mut self, now: Nanos, call: Call);
    /// It returned.
    fn answer(&mut self, answer: Answer);
}

/// A machine that only changes by calls that are recorded, if somebody records.
#[derive(Clone, Debug)]
pub struct Recorded<M, R> {
    machine: M,
    recorder: Option<R>,
}

impl<M, R> Recorded<M, R> {
    /// A machine that has not been called yet.
    pub fn new(machine: M, recorder: Option<R>) -> Self {
        Self { machine, recorder }
    }

    /// Where its calls are written.
    pub fn recorder_mut(&mut self) -> Option<&mut R> {
        self.recorder.as_mut()
    }
}

impl<M: Default, R> Default for Recorded<M, R> {
    fn default() -> Self {
        Self::new(M::default(), None)
    }
}

impl<M, R> Deref for Recorded<M, R> {
    type Target = M;
    fn deref(&self) -> &M {
        &self.machine
    }
}

impl<R: Recorder> Recorded<Controller, R> {
    /// [`Controller::on_input`].
    #[inline]
    pub fn on_input(&mut self, now: Nanos, input: Input, out: &mut Vec<Output>) {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.on_input(now, input, out);
        };
        recorder.call(now, Call::Input(input.clone()));
        let before = out.len();
        self.machine.on_input(now, input, out);
        recorder.answer(Answer::of(&out[before..]));
    }

    /// [`Controller::on_deadline`].
    #[inline]
    pub fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Output>) {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.on_deadline(now, out);
        };
        recorder.call(now, Call::Deadline);
        let before = out.len();
        self.machine.on_deadline(now, out);
        recorder.answer(Answer::of(&out[before..]));
    }

    /// [`Controller::schedule`].
    #[inline]
    pub fn schedule(&mut self, now: Nanos, out: &mut Vec<Output>) {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.schedule(now, out);
        };
        recorder.call(now, Call::Schedule);
        let before = out.len();
        self.machine.schedule(now, out);
        recorder.answer(Answer::of(&out[before..]));
    }

    /// [`Controller::take_freed_functions`].
    #[inline]
    pub fn take_freed_functions(&mut self, now: Nanos) -> Vec<FunctionId> {
        let freed = self.machine.take_freed_functions();
        // Without any, the call has changed nothing.
        if let Some(recorder) = self.recorder.as_mut().filter(|_| !freed.is_empty()) {
            recorder.call(now, Call::TakeFreedFunctions);
            recorder.answer(Answer::of(&freed));
        }
        freed
    }
}

#[derive(Serialize)]
struct Written<'a>(#[serde(serialize_with = "forms::written")] &'a OutputRecord);

/// Notes what a driver says.
fn noting<'a>(
    state: impl Fn(&Payload) -> Arguments + 'a,
    said: &'a RefCell<Vec<Said>>,
) -> impl Fn(&Payload) -> Arguments + 'a {
    move |payload| {
        let arguments = state(payload);
        let told = Said::Arguments(arguments.clone());
        said.borrow_mut().push(told);
        arguments
    }
}

impl<R: Recorder> Recorded<Returning, R> {
    fn begin(&mut self, now: Nanos, call: impl FnOnce() -> ReturningCall) {
        if let Some(recorder) = &mut self.recorder {
            recorder.call(now, Call::Returning(call()));
        }
    }

    fn end<O: Serialize>(&mut self, outputs: &[O], said: Vec<Said>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.answer(Answer::with(outputs, said));
        }
    }

    /// [`Returning::on_done`].
    pub fn on_done(
        &mut self,
        now: Nanos,
        host: HostId,
        engine: EngineId,
        record: DoneRecord,
        is_wanted: impl FnOnce(TaskKey) -> bool,
    ) -> Ending {
        self.begin(now, || ReturningCall::OnDone {
            host,
            engine,
            record: record.clone(),
        });
        let mut said = Vec::new();
        let is_wanted = |key| {
            let is_wanted = is_wanted(key);
            said.push(Said::IsWanted(is_wanted));
            is_wanted
        };
        let ending = self.machine.on_done(host, engine, record, is_wanted);
        self.end(slice::from_ref(&ending), said);
        ending
    }

    /// [`Returning::on_report`].
    pub fn on_report(
        &mut self,
        now: Nanos,
        host: HostId,
        report: EngineReport,
    ) -> Option<EngineReport> {
        self.begin(now, || ReturningCall::OnReport {
            host,
            report: report.clone(),
        });
        let passed = self.machine.on_report(host, report);
        if self.recorder.is_some() {
            let outputs = passed.clone().map(|report| Returned::Report(host, report));
            self.end(outputs.as_slice(), Vec::new());
        }
        passed
    }

    /// [`Returning::on_objects`].
    pub fn on_objects(
        &mut self,
        now: Nanos,
        state: impl Fn(&Payload) -> Arguments,
        out: &mut Vec<Returned>,
    ) {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.on_objects(state, out);
        };
        recorder.call(now, Call::Returning(ReturningCall::OnObjects));
        let (said, before) = (RefCell::default(), out.len());
        self.machine.on_objects(noting(state, &said), out);
        recorder.answer(Answer::with(&out[before..], said.into_inner()));
    }

    /// [`Returning::on_host_down`].
    pub fn on_host_down(&mut self, now: Nanos, host: HostId) -> Vec<ObjectId> {
        self.begin(now, || ReturningCall::OnHostDown { host });
        let lost = self.machine.on_host_down(host);
        self.end(&lost, Vec::new());
        lost
    }
}

impl<R: Recorder> Recorded<Relay, R> {
    fn begin(&mut self, now: Nanos, call: impl FnOnce() -> RelayCall) {
        if let Some(recorder) = &mut self.recorder {
            recorder.call(now, Call::Relay(call()));
        }
    }

    fn end<O: Serialize>(&mut self, outputs: &[O]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.answer(Answer::of(outputs));
        }
    }

    /// [`Relay::outlive_controller`].
    pub fn outlive_controller(&mut self, now: Nanos) {
        self.begin(now, || RelayCall::OutliveController);
        self.machine.outlive_controller();
        self.end::<()>(&[]);
    }

    /// [`Relay::on_restarted`].
    pub fn on_restarted(&mut self, now: Nanos, boards: &[Board]) -> Inheritance {
        self.begin(now, || RelayCall::OnRestarted {
            boards: boards.to_vec(),
        });
        let inheritance = self.machine.on_restarted(boards);
        self.end(slice::from_ref(&inheritance));
        inheritance
    }

    /// [`Relay::on_function`].
    pub fn on_function(&mut self, now: Nanos, record: FunctionRecord) {
        self.begin(now, || RelayCall::OnFunction {
            record: record.clone(),
        });
        self.machine.on_function(record);
        self.end::<()>(&[]);
    }

    /// [`Relay::forget_functions`].
    pub fn forget_functions(&mut self, now: Nanos, ids: &[FunctionId]) {
        self.begin(now, || RelayCall::ForgetFunctions { ids: ids.to_vec() });
        self.machine.forget_functions(ids);
        self.end::<()>(&[]);
    }

    /// [`Relay::on_order`].
    pub fn on_order(&mut self, now: Nanos, order: EngineOrder) -> Option<RelayAction> {
        self.begin(now, || RelayCall::OnOrder {
            order: order.clone(),
        });
        let action = self.machine.on_order(order);
        self.end(action.as_slice());
        action
    }

    /// [`Relay::on_report`].
    pub fn on_report(&mut self, now: Nanos, report: &EngineReport) {
        self.begin(now, || RelayCall::OnReport {
            report: report.clone(),
        });
        self.machine.on_report(report);
        self.end::<()>(&[]);
    }

    /// [`Relay::on_fork_server_up`].
    pub fn on_fork_server_up(&mut self, now: Nanos, out: &mut Vec<RelayAction>) {
        self.begin(now, || RelayCall::OnForkServerUp);
        let before = out.len();
        self.machine.on_fork_server_up(out);
        self.end(&out[before..]);
    }

    /// [`Relay::on_fork_server_down`].
    pub fn on_fork_server_down(&mut self, now: Nanos) -> RelayAction {
        self.begin(now, || RelayCall::OnForkServerDown);
        let action = self.machine.on_fork_server_down();
        self.end(slice::from_ref(&action));
        action
    }

    /// [`Relay::leave`].
    pub fn leave(&mut self, now: Nanos) -> RelayAction {
        self.begin(now, || RelayCall::Leave);
        let action = self.machine.leave();
        self.end(slice::from_ref(&action));
        action
    }

    /// [`Relay::on_offered`].
    #[inline]
    pub fn on_offered(
        &mut self,
        now: Nanos,
        engine: EngineId,
        record: AssignRecord,
        arguments: &Arguments,
    ) -> Option<Freed> {
        self.begin(now, || RelayCall::OnOffered {
            engine,
            record: record.clone(),
            arguments: arguments.clone(),
        });
        let freed = self.machine.on_offered(engine, record, arguments);
        self.end(freed.as_slice());
        freed
    }

    /// [`Relay::on_objects`].
    pub fn on_objects(
        &mut self,
        now: Nanos,
        state: impl Fn(&Payload) -> Arguments,
        out: &mut Vec<Freed>,
    ) {
        let Some(recorder) = &mut self.recorder else {
            return self.machine.on_objects(state, out);
        };
        recorder.call(now, Call::Relay(RelayCall::OnObjects));
        let (said, before) = (RefCell::default(), out.len());
        self.machine.on_objects(noting(state, &said), out);
        recorder.answer(Answer::with(&out[before..], said.into_inner()));
    }

    /// [`Relay::on_output`].
    pub fn on_output(
        &mut self,
        now: Nanos,
        engine: EngineId,
        task: u64,
        record: Option<OutputRecord>,
        is_congested: bool,
    ) -> (Vec<OutputRecord>, Option<OutputRecord>) {
        self.begin(now, || RelayCall::OnOutput {
            engine,
            task,
            record: record.clone(),
            is_congested,
        });
        let passed = (self.machine).on_output(engine, task, record, is_congested);
        if self.recorder.is_some() {
            let outputs: Vec<_> = passed.0.iter().chain(&passed.1).map(Written).collect();
            self.end(&outputs);
        }
        passed
    }
}

//! Runs the machines of a node through what was recorded of them, and records what simulated ones are told.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use broadleaf_core::recording::{
    self, Answer, Call, End, Head, Line, Recorded, Recorder, RelayCall, ReturningCall, Said, Start,
    Unreadable,
};
use broadleaf_core::relay::{Arguments, Relay};
use broadleaf_core::returning::Returning;
use broadleaf_core::{Controller, Nanos};

/// Number of outputs of a call that differs which are shown.
const SHOWN_OUTPUTS: usize = 5;

/// The results of a replay that went as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Calls of machines.
    pub calls: u64,
    /// What they returned.
    pub outputs: u64,
    /// Why the recording ended before its node, if it did.
    pub end: Option<End>,
}

/// The first line of a recording that did not go as it was recorded, or broke an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its number, from 1 on.
    pub line: usize,
    /// When it was recorded.
    pub now_ns: Nanos,
    /// What went wrong.
    pub what: String,
    /// The version that recorded it, if this is another one.
    pub recorded_by: Option<String>,
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} ({} ns): {}", self.line, self.now_ns, self.what)?;
        match &self.recorded_by {
            Some(version) => write!(f, " (recorded by version {version})"),
            None => Ok(()),
        }
    }
}

/// The number of a controller's calls after each of which it is checked, and how many calls there are between two later
/// checks.
const CHECKED_CALLS: u64 = 2_000;
const CHECKED_EVERY: u64 = 32;

/// Why a replay did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The text is no recording.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// See there.
    #[error("{0}")]
    Differs(Box<Difference>),
}

/// Runs the machines through a recording. The invariants of a controller are checked after each of its first calls, and
/// later after some: a check looks at everything that the controller holds.
///
/// # Errors
/// [`ReplayError`], at the first line that cannot be read, returns something else than was recorded, or breaks an
/// invariant.
pub fn replay(text: &str) -> Result<Replayed, ReplayError> {
    run(text, true)
}

/// Runs the machines through the inputs of a recording, whatever they return: for a bug that was recorded and is fixed.
///
/// # Errors
/// [`ReplayError`], at the first line that cannot be read or breaks an invariant.
pub fn replay_inputs(text: &str) -> Result<Replayed, ReplayError> {
    run(text, false)
}

fn run(text: &str, compares: bool) -> Result<Replayed, ReplayError> {
    let (head, lines) = recording::read(text)?;
    let version = env!("CARGO_PKG_VERSION");
    let recorded_by = (head.version != version).then_some(head.version);
    let mut machines = Machines::start(head.start);
    let mut replayed = Replayed {
        calls: 0,
        outputs: 0,
        end: None,
    };
    for line in lines {
        let (line, content) = line?;
        let (now_ns, call, answer) = match content {
            Line::Call { now, call, answer } => (now, call, answer),
            Line::End(end) => {
                replayed.end = Some(end);
                break;
            }
        };
        let differs = |what| {
            ReplayError::Differs(Box::new(Difference {
                line,
                now_ns,
                what,
                recorded_by: recorded_by.clone(),
            }))
        };
        let run = || machines.run(now_ns, *call, answer.as_ref(), compares);
        let outputs = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(format!("it panicked: {}", message(&*panic))));
        replayed.calls += 1;
        replayed.outputs += outputs.map_err(differs)? as u64;
    }
    Ok(replayed)
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// The latest answer of a machine.
#[derive(Debug, Default)]
struct Latest(Option<Answer>);

impl Recorder for Latest {
    fn call(&mut self, _: Nanos, _: Call) {
        self.0 = None;
    }
    fn answer(&mut self, answer: Answer) {
        self.0 = Some(answer);
    }
}

/// The machines of a node.
struct Machines {
    /// Calls of the controller so far.
    calls: u64,
    controller: Option<Recorded<Controller, Latest>>,
    returning: Recorded<Returning, Latest>,
    relay: Recorded<Relay, Latest>,
}

impl Machines {
    fn start(start: Start) -> Self {
        let controller = match start {
            Start::Controller(config) => Some(Controller::new(config)),
            Start::Relay => None,
        };
        Self {
            calls: 0,
            controller: controller.map(|machine| Recorded::new(machine, Some(Latest::default()))),
            returning: Recorded::new(Returning::default(), Some(Latest::default())),
            relay: Recorded::new(Relay::default(), Some(Latest::default())),
        }
    }

    /// Makes one call, and compares what becomes of it; returns the number of outputs.
    fn run(
        &mut self,
        now: Nanos,
        call: Call,
        recorded: Option<&Answer>,
        compares: bool,
    ) -> Result<usize, String> {
        let said = recorded.map(|answer| answer.said.as_slice());
        let mut shown = Vec::new();
        let latest = match call {
            Call::Returning(call) => self.run_returning(now, call, said.unwrap_or_default()),
            Call::Relay(call) => self.run_relay(now, call, said.unwrap_or_default()),
            call => {
                let Some(controller) = &mut self.controller else {
                    return Err("a call of a controller in the recording of a relay".to_owned());
                };
                self.calls += 1;
                let is_checked =
                    self.calls <= CHECKED_CALLS || self.calls.is_multiple_of(CHECKED_EVERY);
                run_controller(controller, now, call, is_checked, &mut shown)?;
                controller.recorder_mut()
            }
        };
        let found = latest.and_then(|latest| latest.0.take());
        match (recorded.filter(|_| compares), found) {
            // The machine did not return, or the node ended meanwhile.
            (None, found) => Ok(found.map_or(0, |found| found.outputs)),
            (Some(recorded), Some(found)) if *recorded == found => Ok(found.outputs),
            (Some(recorded), found) => Err(format!(
                "recorded were {}, but it returned {}{}",
                told(Some(recorded)),
                told(found.as_ref()),
                shown.join("")
            )),
        }
    }

    fn run_returning(
        &mut self,
        now: Nanos,
        call: ReturningCall,
        said: &[Said],
    ) -> Option<&mut Latest> {
        let returning = &mut self.returning;
        match call {
            ReturningCall::OnDone {
                host,
                engine,
                record,
            } => {
                let is_wanted = said == [Said::IsWanted(true)];
                returning.on_done(now, host, engine, record, |_| is_wanted);
            }
            ReturningCall::OnReport { host, report } => {
                returning.on_report(now, host, report);
            }
            ReturningCall::OnObjects => {
                returning.on_objects(now, repeated(said), &mut Vec::new());
            }
            ReturningCall::OnHostDown { host } => {
                returning.on_host_down(now, host);
            }
        }
        returning.recorder_mut()
    }

    fn run_relay(&mut self, now: Nanos, call: RelayCall, said: &[Said]) -> Option<&mut Latest> {
        let relay = &mut self.relay;
        match call {
            RelayCall::OutliveController => relay.outlive_controller(now),
            RelayCall::OnRestarted { boards } => {
                relay.on_restarted(now, &boards);
            }
            RelayCall::OnFunction { record } => relay.on_function(now, record),
            RelayCall::ForgetFunctions { ids } => relay.forget_functions(now, &ids),
            RelayCall::OnOrder { order } => {
                relay.on_order(now, order);
            }
            RelayCall::OnReport { report } => relay.on_report(now, &report),
            RelayCall::OnForkServerUp => relay.on_fork_server_up(now, &mut Vec::new()),
            RelayCall::OnForkServerDown => {
                relay.on_fork_server_down(now);
            }
            RelayCall::Leave => {
                relay.leave(now);
            }
            RelayCall::OnOffered {
                engine,
                record,
                arguments,
            } => {
                relay.on_offered(now, engine, record, &arguments);
            }
            RelayCall::OnObjects => relay.on_objects(now, repeated(said), &mut Vec::new()),
            RelayCall::OnOutput {
                engine,
                task,
                record,
                is_congested,
            } => {
                relay.on_output(now, engine, task, record, is_congested);
            }
        }
        relay.recorder_mut()
    }
}

/// Calls a controller, and perhaps checks it; `shown` gets the first outputs as text.
fn run_controller(
    controller: &mut Recorded<Controller, Latest>,
    now: Nanos,
    call: Call,
    is_checked: bool,
    shown: &mut Vec<String>,
) -> Result<(), String> {
    let mut out = Vec::new();
    let is_schedule = call == Call::Schedule;
    match call {
        Call::Input(input) => controller.on_input(now, input, &mut out),
        Call::Deadline => controller.on_deadline(now, &mut out),
        Call::Schedule => controller.schedule(now, &mut out),
        Call::TakeFreedFunctions => {
            controller.take_freed_functions(now);
        }
        Call::Returning(_) | Call::Relay(_) => {}
    }
    let lines = out.iter().take(SHOWN_OUTPUTS);
    shown.extend(lines.map(|output| format!("\n  {}", recording::shown(output))));
    if !is_checked {
        return Ok(());
    }
    let checked = controller.check();
    let checked = checked.and_then(|()| {
        if is_schedule {
            controller.check_waits(now)
        } else {
            Ok(())
        }
    });
    checked.map_err(|violation| violation.to_string())
}

/// Says what a driver said, in this order; more than that is on its way.
fn repeated<P>(said: &[Said]) -> impl Fn(&P) -> Arguments {
    let said = RefCell::new(VecDeque::from(said.to_vec()));
    move |_| match said.borrow_mut().pop_front() {
        Some(Said::Arguments(arguments)) => arguments,
        Some(Said::IsWanted(_)) | None => Arguments::Coming,
    }
}

fn told(answer: Option<&Answer>) -> String {
    match answer {
        Some(answer) => format!("{} outputs ({:016x})", answer.outputs, answer.digest),
        None => "nothing".to_owned(),
    }
}

/// The recording of a simulated node; its machines share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text(Rc<RefCell<Vec<u8>>>);

impl Text {
    pub(crate) fn begin(start: Start) -> Self {
        let text = Self::default();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        recording::begin(&Head { version, start }, &mut text.0.borrow_mut());
        text
    }

    pub(crate) fn read(&self) -> String {
        String::from_utf8_lossy(&self.0.borrow()).into_owned()
    }
}

impl Recorder for Text {
    fn call(&mut self, now: Nanos, call: Call) {
        recording::call(now, &call, &mut self.0.borrow_mut());
    }
    fn answer(&mut self, answer: Answer) {
        recording::answer(&answer, &mut self.0.borrow_mut());
    }
}

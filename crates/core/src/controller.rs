//! The controller: its state and its entry points.

use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::ids::{ClientId, EngineId, TaskSeq};

use crate::{Config, Counters, Input, Nanos, Output};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("controller invariant broken: {0}")]
pub struct Violation(pub String);

/// Routes and schedules.
#[derive(Debug)]
pub struct Controller {
    config: Config,
}

impl Controller {
    /// A controller that knows no client and no engine.
    pub fn new(config: Config) -> Self {
        Self { config }
    }
    /// Takes one input. Tasks it made ready are placed by the next [`Self::schedule`].
    pub fn on_input(&mut self, _now: Nanos, _input: Input, _out: &mut Vec<Output>) {}
    /// Places ready tasks; called once after a batch of inputs, and after [`Self::on_deadline`].
    pub fn schedule(&mut self, _now: Nanos, _out: &mut Vec<Output>) {}
    /// When [`Self::on_deadline`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        None
    }
    /// Does what is due by `now`.
    pub fn on_deadline(&mut self, _now: Nanos, _out: &mut Vec<Output>) {}
    /// Verifies every invariant; costs time proportional to everything there is.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn check(&self) -> Result<(), Violation> {
        Ok(())
    }
    /// Counters of the controller and its engines.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
    /// Why a task waits, in a sentence.
    pub fn explain(&self, _client: ClientId, _seq: TaskSeq) -> String {
        String::new()
    }
    /// The engines that are up, by id: what a new client is told.
    pub fn engines(&self) -> Vec<EngineInfo> {
        Vec::new()
    }
    /// Whether an engine may say hello for this place: it is wanted and nobody has it.
    pub fn expects(&self, engine: EngineId) -> bool {
        engine.0 < self.config.n_engines
    }
    /// A place for an engine that was started by hand; taken by its `EngineUp`.
    pub fn vacant_engine(&self) -> EngineId {
        EngineId(self.config.n_engines)
    }
}

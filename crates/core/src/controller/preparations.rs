//! Preparations of engines: see [`crate::engines::preparations`].

use broadleaf_proto::control::ControlReply;
use broadleaf_proto::ids::{ClientId, EngineId, FunctionId};
use broadleaf_proto::limits::MAX_LABEL_BYTES;

use super::Controller;
use crate::Output;
use crate::clients::DefinedFunction;
use crate::engines::State;
use crate::engines::preparations::MAX_PREPARATIONS;

impl Controller {
    /// Makes engines run a preparation, which replaces the client's earlier one of this name. With
    /// `reload` each function is sent to them again before the next task that names it.
    pub(super) fn prepare(
        &mut self,
        client: ClientId,
        name: String,
        function: FunctionId,
        reload: bool,
        out: &mut Vec<Output>,
    ) -> ControlReply {
        if name.len() > MAX_LABEL_BYTES {
            return ControlReply::Failed(format!(
                "the name of a preparation may have at most {MAX_LABEL_BYTES} bytes, not {}",
                name.len()
            ));
        }
        let known = self.clients.get(client);
        let slot = match known.and_then(|c| c.function(function)) {
            Some(DefinedFunction::At(slot)) => slot,
            Some(DefinedFunction::OverLimit) => {
                return ControlReply::Failed("it does not fit into function_cache_bytes".into());
            }
            None => return ControlReply::Failed("a preparation that was never sent".into()),
        };
        let name = (client, name);
        if !reload && self.preparations.is(&name, slot) {
            return ControlReply::Done; // Every engine has run it, or will do so first.
        }
        if !self.preparations.has_room(&name) {
            return ControlReply::Failed(format!("more than {MAX_PREPARATIONS} preparations"));
        }
        self.functions.retain(slot);
        if let Some(before) = self.preparations.set(name, slot) {
            self.release_function(before);
        }
        for engine in &mut self.engines {
            if reload {
                engine.forget_functions();
            }
            if matches!(engine.state(), State::Up | State::Draining) {
                out.push(Output::Function {
                    engine: engine.id(),
                    record: self.functions.record(slot),
                });
            }
        }
        ControlReply::Done
    }

    /// Tells a new engine everything that it has to do before its first task.
    pub(super) fn prepare_engine(&self, engine: EngineId, out: &mut Vec<Output>) {
        out.extend(self.preparations.slots().map(|slot| Output::Function {
            engine,
            record: self.functions.record(slot),
        }));
    }
}

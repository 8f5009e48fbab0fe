//! Preparations: functions that every engine, even one that starts later, calls before it runs what the client submits
//! afterwards.

use broadleaf_proto::control::ControlReply;
use broadleaf_proto::ids::{ClientId, EngineId, FunctionId};
use broadleaf_proto::limits::MAX_LABEL_BYTES;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::engines::State;
use crate::{Controller, Output};

/// Maximum number of preparations of one client.
const MAX_PREPARATIONS: usize = 1024;

/// See the module. Slots in the function cache by client and name, the latest last: engines make them
/// in this order.
pub(crate) type Preparations = IndexMap<(ClientId, String), u32, FxBuildHasher>;

impl Controller {
    /// Makes engines run a preparation, which replaces the client's earlier one of this name. With
    /// `reload` each function is sent to them again before the next task that names it.
    pub(crate) fn prepare(
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
        let known = self.clients.get(&client);
        let slot = match known.and_then(|c| c.functions.get(&function)) {
            Some(Some(slot)) => *slot,
            Some(None) => {
                return ControlReply::Failed("it does not fit into function_cache_bytes".into());
            }
            None => return ControlReply::Failed("a preparation that was never sent".into()),
        };
        let name = (client, name);
        if !reload && self.preparations.get(&name) == Some(&slot) {
            return ControlReply::Done; // Every engine has run it, or will do so first.
        }
        let before = self.preparations.shift_remove(&name);
        if before.is_none() {
            let own = self.preparations.keys().filter(|(id, _)| *id == client);
            if own.count() >= MAX_PREPARATIONS {
                return ControlReply::Failed(format!("more than {MAX_PREPARATIONS} preparations"));
            }
        }
        self.functions.retain(slot);
        self.preparations.insert(name, slot);
        if let Some(before) = before {
            self.release_function(before);
        }
        for engine in &mut self.engines {
            if reload {
                engine.forget_functions();
            }
            if matches!(engine.state, State::Up | State::Draining) {
                out.push(Output::Function {
                    engine: engine.id,
                    record: self.functions.record(slot),
                });
            }
        }
        ControlReply::Done
    }

    /// Tells a new engine everything that it has to do before its first task.
    pub(crate) fn prepare_engine(&self, engine: EngineId, out: &mut Vec<Output>) {
        out.extend(self.preparations.values().map(|slot| Output::Function {
            engine,
            record: self.functions.record(*slot),
        }));
    }

    /// Engines that start from now on skip the preparations of a client that is gone.
    pub(crate) fn drop_preparations(&mut self, client: ClientId) {
        let mut dropped = Vec::new();
        self.preparations.retain(|(id, _), slot| {
            let stays = *id != client;
            if !stays {
                dropped.push(*slot);
            }
            stays
        });
        for slot in dropped {
            self.release_function(slot);
        }
    }
}

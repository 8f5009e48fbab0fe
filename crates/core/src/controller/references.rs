//! References to functions and sets of options: the last one frees a slot.

use broadleaf_proto::ids::FunctionId;

use super::Controller;
use crate::results::store::StoredTask;

impl Controller {
    /// Releases a reference to a function; the last one frees its slot for another function.
    pub(super) fn release_function(&mut self, slot: u32) {
        if let Some(taught) = self.functions.release(slot) {
            if self.hosts.any_up() {
                self.functions.note_freed(slot);
            }
            for engine in taught.iter() {
                self.engines[engine as usize].forget(slot);
            }
        }
    }

    /// Releases a reference to a set of options; with the last one its client has room for another.
    pub(super) fn release_options(&mut self, slot: u32) {
        if let Some(set) = self.options.release(slot)
            && let Some(owner) = set.owner
        {
            self.clients.discharge_options(owner, set.weight_bytes());
        }
    }

    pub(super) fn release_stored(&mut self, task: &StoredTask) {
        self.release_function(task.function());
        self.release_options(task.options());
    }

    /// Forgets the oldest stored task, if there is one.
    pub(super) fn forget_oldest_kept(&mut self) -> bool {
        let oldest = self.result_store.pop();
        if let Some(task) = &oldest {
            self.release_stored(task);
        }
        oldest.is_some()
    }

    /// Functions that relays need not keep: those freed since the last call. A later [`Output::Function`] may give the
    /// same id to another function, so tell relays before carrying out later outputs.
    pub fn take_freed_functions(&mut self) -> Vec<FunctionId> {
        self.functions.take_freed()
    }
}

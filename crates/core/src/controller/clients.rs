//! How clients come and go, and what they define.

use broadleaf_proto::control::{DefineOptions, Event};
use broadleaf_proto::ids::{ClientId, OptionsId};
use broadleaf_proto::limits::{MAX_CLIENT_OPTIONS_BYTES, MAX_LABEL_BYTES};
use broadleaf_proto::task::FunctionRecord;

use super::Controller;
use crate::Output;
use crate::clients::history::History;
use crate::clients::{DefinedOptions, Farewell};
use crate::tasks::TaskState;
use crate::tasks::options::OptionSet;

impl Controller {
    pub(super) fn on_client_up(&mut self, client: ClientId, name: String, out: &mut Vec<Output>) {
        if self.clients.contains(client) {
            self.totals.ignored += 1;
            return;
        }
        let history = History::new(self.config.history_tasks, self.config.max_outstanding_tasks);
        self.clients.add(client, name, history);
        if self.supervisor.is_stopping() {
            let event = Event::Stopping;
            out.push(Output::Event { client, event });
        }
    }

    pub(super) fn on_client_down(&mut self, client: ClientId, out: &mut Vec<Output>) {
        self.await_engines(client, false, out);
        self.observers.drop_client(client);
        let live = match self.clients.close(client) {
            None => return,
            Some(Farewell::Continues { is_done }) => {
                // Nobody reads this client's results, so it cannot be congested.
                self.on_congested(client, false);
                self.clients.drop_waits(client);
                if is_done {
                    self.remove_client(client);
                }
                return;
            }
            Some(Farewell::Ends(live)) => live,
        };
        for slot in live {
            let Some(key) = self.tasks.key_at(slot) else {
                continue;
            };
            let task = self.tasks.at(key);
            if task.take_dependents() {
                self.dependencies.forget_dependents(key.slot() as u32);
            }
            if let TaskState::Offered(engine, offer) = task.state() {
                // A task that runs may finish; one that does not is taken back.
                task.lose_client();
                self.take_back(engine, key, offer, out);
            } else {
                self.detach(key);
                self.tasks.at(key).lose_client();
                self.discard(key, out);
            }
        }
        self.clients.drop_waits(client);
        self.remove_client(client);
    }

    /// Forgets clients that are away and whose last task has ended.
    pub(super) fn remove_departed(&mut self) {
        while let Some(client) = self.clients.next_departed() {
            self.remove_client(client);
        }
    }

    /// Forgets a client that has no tasks any more. Engines that start from now on skip its preparations.
    fn remove_client(&mut self, client: ClientId) {
        for slot in self.preparations.drop_client(client) {
            self.release_function(slot);
        }
        let Some(defined) = self.clients.remove(client) else {
            return;
        };
        for slot in defined.functions {
            self.release_function(slot);
        }
        for slot in defined.options {
            self.release_options(slot);
        }
    }

    /// Functions count for each client that defined them, so that a client that defines too many does not affect
    /// others.
    pub(super) fn on_function(&mut self, client: ClientId, record: &FunctionRecord) {
        let bytes = record.body.len() as u64;
        let limit_bytes = self.config.function_cache_bytes;
        let function = record.function;
        match (self.clients).reserve_function(client, function, bytes, limit_bytes) {
            None => {
                self.totals.ignored += 1;
                return;
            }
            Some(false) => return,
            Some(true) => {}
        }
        // Stored results never get in the way of new tasks.
        while self.functions.bytes().saturating_add(bytes) > limit_bytes
            && self.forget_oldest_kept()
        {}
        let slot = self
            .functions
            .define(record.hash, &record.name, &record.body);
        self.clients.define_function(client, function, slot);
    }

    pub(super) fn on_options(&mut self, client: ClientId, define: DefineOptions) {
        if define.id == OptionsId(0) || !self.clients.may_define_options(client) {
            self.totals.ignored += 1;
            return;
        }
        let set = OptionSet::new(Some(client), define.options);
        let is_short = set.options.label.len() <= MAX_LABEL_BYTES;
        let bytes = set.weight_bytes();
        let fits = is_short
            && self
                .clients
                .charge_options(client, bytes, MAX_CLIENT_OPTIONS_BYTES);
        let defined = if fits {
            DefinedOptions::At(self.options.insert(set))
        } else {
            DefinedOptions::OverLimit(set.n_parts())
        };
        if let Some(before) = self.clients.define_options(client, define.id, defined) {
            self.release_options(before);
        }
    }

    pub(super) fn on_congested(&mut self, client: ClientId, congested: bool) {
        if !self.clients.set_congested(client, congested) {
            return;
        }
        for queue in self.groups.queues_mut() {
            queue.set_congested(client, congested);
        }
        for engine in self.engines.with_queued() {
            let queue = self.engines[engine as usize].pinned_mut();
            queue.set_congested(client, congested);
        }
    }
}

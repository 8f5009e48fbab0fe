//! What clients know of engines: with each reply, those that take tasks, and those that die, which they hear of together
//! with the cause.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_core::{Controller, Input, Output};
use broadleaf_proto::control::Event;
use broadleaf_proto::ids::{ClientId, EngineId};

/// The engines, by slot and process, that each client has been told of.
///
/// Whatever goes to a client arrives in order, so it knows of them by the time it has the reply.
#[derive(Debug, Default)]
pub(crate) struct KnownEngines(BTreeMap<ClientId, BTreeSet<(EngineId, u32)>>);

impl KnownEngines {
    /// A client that connects is told of the engines that are there.
    pub(crate) fn on_input(&mut self, input: &Input, controller: &Controller) {
        if let Input::ClientUp { client, .. } = input {
            self.0.entry(*client).or_insert_with(|| there(controller));
        }
    }

    /// Takes what the controller sends.
    ///
    /// # Errors
    /// A client gets a reply and knows of engines that are gone or leave, or not of all that are there.
    pub(crate) fn on_output(
        &mut self,
        output: &Output,
        controller: &Controller,
    ) -> Result<(), String> {
        match output {
            Output::Event { client, event } => {
                let Some(known) = self.0.get_mut(client) else {
                    return Ok(());
                };
                match event {
                    Event::EngineUp(info) => {
                        known.insert((info.engine, info.pid));
                    }
                    Event::EngineLeaving(engine) => known.retain(|(one, _)| one != engine),
                    Event::EngineDown(death) => known.retain(|(one, _)| *one != death.engine),
                    Event::Stopping => {
                        self.0.remove(client); // It needs none any more.
                    }
                }
                Ok(())
            }
            Output::Reply { client, .. } => match self.0.get(client) {
                Some(known) => check(known, controller)
                    .map_err(|what| format!("client {} {what}, with a reply", client.0)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn check(known: &BTreeSet<(EngineId, u32)>, controller: &Controller) -> Result<(), String> {
    let there = there(controller);
    if let Some(missing) = there.difference(known).next() {
        return Err(format!("does not know of {missing:?}"));
    }
    let engines = controller.counters().engines;
    let dies = |slot: EngineId| engines[slot.0 as usize].state == "dying";
    match known.difference(&there).find(|(slot, _)| !dies(*slot)) {
        Some(over) => Err(format!("still knows of {over:?}")),
        None => Ok(()),
    }
}

fn there(controller: &Controller) -> BTreeSet<(EngineId, u32)> {
    let engines = controller.engines().into_iter();
    engines.map(|info| (info.engine, info.pid)).collect()
}

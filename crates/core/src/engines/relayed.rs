//! What relays report. Whoever has the engines' key can act as one, so a relay is believed only about its own host and
//! its engines, and no number in its reports may exceed what was sent there. A relay that reports anything else is
//! expelled.

use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::limits::{CLAIM_SLOTS, LAST_OUTPUT_BYTES, MAX_HOST_NAME_BYTES};
use broadleaf_proto::relay::{RelayEvent, RelayedDone};
use broadleaf_proto::task::OutputRecord;

use crate::engines::Engine;
use crate::tasks::TaskState;
use crate::{Controller, Nanos, Output};

/// What a relay reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// An engine, or its process, came, went or changed. [`crate::transfer`] handles the progress of payload.
    Event(RelayEvent),
    /// A task ended.
    Done(RelayedDone),
    /// A task wrote something.
    Output(OutputRecord),
}

/// Maximum length of an engine's unique name, in bytes.
const MAX_UUID_BYTES: usize = 64;
/// Bytes that are not text take three bytes as text.
const MAX_LAST_OUTPUT_BYTES: usize = 3 * LAST_OUTPUT_BYTES;
const MAX_REASON_BYTES: usize = 4096;

/// The engine that a report is about; `None` if it is about none.
fn subject(news: &HostEvent) -> Option<EngineId> {
    Some(match news {
        HostEvent::Done(done) => done.engine,
        HostEvent::Output(record) => record.engine,
        HostEvent::Event(event) => match event {
            RelayEvent::EngineUp(info) => info.engine,
            RelayEvent::EngineDown { engine, .. }
            | RelayEvent::Revoked { engine, .. }
            | RelayEvent::Waits { engine, .. }
            | RelayEvent::Delivered { engine, .. }
            | RelayEvent::Undeliverable { engine, .. } => *engine,
            RelayEvent::ForkServer(event) => return event.engine(),
            RelayEvent::Fetched(_)
            | RelayEvent::FetchFailed { .. }
            | RelayEvent::Mover(_)
            | RelayEvent::Pong { .. }
            | RelayEvent::EndsSoon { .. }
            | RelayEvent::Measured(_) => return None,
        },
    })
}

/// Truncates a text for people to its last bytes.
fn keep_end(text: &mut String, max_bytes: usize) {
    let excess = text.len().saturating_sub(max_bytes);
    let cut = (excess..=text.len()).find(|at| text.is_char_boundary(*at));
    text.drain(..cut.unwrap_or(0));
}

/// The offers of an engine that were never started, when its link is gone.
#[derive(Debug, Default)]
pub(crate) struct Unclaimed {
    /// Sorted.
    listed: Vec<u32>,
    /// The first offer that had not reached its board, and how many those are.
    on_the_way: (u32, u32),
}

impl Unclaimed {
    pub fn listed(mut listed: Vec<u32>) -> Self {
        listed.sort_unstable();
        Self {
            listed,
            on_the_way: (0, 0),
        }
    }

    pub fn contains(&self, offer: u32) -> bool {
        let (first, n) = self.on_the_way;
        offer.wrapping_sub(first) < n || self.listed.binary_search(&offer).is_ok()
    }
}

impl Engine {
    /// How many of the open offers had not reached its board, given the number after the last one that had. `None` for
    /// a number that was never offered, or that cannot have been the last.
    fn n_on_the_way(&self, next_offer: u32) -> Option<u32> {
        let n = self.next_offer().wrapping_sub(next_offer);
        (n as usize <= self.offers.len()).then_some(n)
    }
}

impl Controller {
    /// Whether an engine has been offered an unfinished task: only then is its value worth fetching.
    pub fn is_offered(&self, engine: EngineId, key: TaskKey) -> bool {
        let task = self.tasks.get(key);
        task.is_some_and(|task| matches!(task.state, TaskState::Offered(at, _) if at == engine))
    }

    pub(crate) fn on_host_event(
        &mut self,
        now: Nanos,
        host: HostId,
        news: HostEvent,
        out: &mut Vec<Output>,
    ) {
        if !self.is_relay_up(host) {
            self.totals.ignored += 1;
            return;
        }
        if let HostEvent::Event(RelayEvent::ForkServer(ForkServerEvent::Guest {
            world,
            size,
            rank,
            pid,
        })) = news
        {
            if !self.on_guest(now, host, world, size, rank, pid, out) {
                self.expel(host, out);
            }
            return;
        }
        if let HostEvent::Event(RelayEvent::EndsSoon { ends_in_ns }) = news {
            self.on_notice(now, host, ends_in_ns, out);
            return;
        }
        if let HostEvent::Event(RelayEvent::Measured(counts)) = news {
            self.on_measured(now, host, counts);
            return;
        }
        if let HostEvent::Event(RelayEvent::ForkServer(ForkServerEvent::Written {
            reading,
            text,
        })) = news
        {
            self.on_written(host, reading, text, out);
            return;
        }
        let Some(engine) = subject(&news) else {
            self.totals.ignored += 1; // Reports about payload are not decided here.
            return;
        };
        if self.host_of(engine) != host {
            self.expel(host, out);
            return;
        }
        match news {
            HostEvent::Done(RelayedDone { engine, record }) => {
                self.on_done(now, engine, record, None, out);
            }
            HostEvent::Output(record) => self.on_output(engine, record, out),
            HostEvent::Event(event) => self.on_relay_event(now, host, event, out),
        }
    }

    fn on_relay_event(
        &mut self,
        now: Nanos,
        host: HostId,
        event: RelayEvent,
        out: &mut Vec<Output>,
    ) {
        match event {
            RelayEvent::EngineUp(info) => {
                if info.uuid.len() > MAX_UUID_BYTES || info.host.len() > MAX_HOST_NAME_BYTES {
                    self.expel(host, out);
                    return;
                }
                self.on_engine_up(now, info, out);
            }
            RelayEvent::EngineDown {
                engine,
                unclaimed_offers,
                next_offer,
            } => {
                let books = &self.engines[engine.0 as usize];
                if !books.is_connected() {
                    self.totals.ignored += 1;
                    return;
                }
                let n = books.n_on_the_way(next_offer);
                let Some(n) = n.filter(|_| unclaimed_offers.len() <= CLAIM_SLOTS) else {
                    self.expel(host, out); // The report counts offers that were never made.
                    return;
                };
                let unclaimed = Unclaimed {
                    on_the_way: (next_offer, n),
                    ..Unclaimed::listed(unclaimed_offers)
                };
                self.on_engine_down(now, engine, &unclaimed, out);
            }
            RelayEvent::Revoked { engine, key, won } => {
                self.on_revoked(now, engine, key, won, out);
            }
            RelayEvent::Waits { engine, event } => self.on_engine_event(now, engine, event, out),
            RelayEvent::ForkServer(mut event) => {
                match &mut event {
                    ForkServerEvent::Exited { last_output, .. } => {
                        keep_end(last_output, MAX_LAST_OUTPUT_BYTES);
                    }
                    ForkServerEvent::NotStarted { reason, .. } => {
                        keep_end(reason, MAX_REASON_BYTES);
                    }
                    ForkServerEvent::Spawned(..)
                    | ForkServerEvent::Guest { .. }
                    | ForkServerEvent::Written { .. } => {}
                }
                self.on_fork_server_event(now, event, out);
            }
            RelayEvent::Delivered { engine, key } => self.on_delivered(now, engine, key),
            RelayEvent::Undeliverable {
                engine,
                key,
                mut reason,
            } => {
                keep_end(&mut reason, MAX_REASON_BYTES);
                self.on_undeliverable(now, engine, key, reason, out);
            }
            RelayEvent::Fetched(_)
            | RelayEvent::FetchFailed { .. }
            | RelayEvent::Mover(_)
            | RelayEvent::Pong { .. }
            | RelayEvent::EndsSoon { .. }
            | RelayEvent::Measured(_) => {}
        }
    }

    /// Cuts off a relay that reports something impossible. Its engines, and only they, are lost, as if it had died.
    pub(crate) fn expel(&mut self, host: HostId, out: &mut Vec<Output>) {
        self.totals.ignored += 1;
        out.push(Output::Expel { host });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut text = "aßc".to_owned();
        keep_end(&mut text, 2);
        assert_eq!(text, "c");
        keep_end(&mut text, 2);
        assert_eq!(text, "c");
    }

    #[test]
    fn offers_on_the_way_are_counted_over_the_end_of_their_numbers() {
        let unclaimed = Unclaimed {
            listed: vec![7],
            on_the_way: (u32::MAX, 3),
        };
        let found = [u32::MAX - 1, u32::MAX, 0, 1, 2, 7].map(|offer| unclaimed.contains(offer));
        assert_eq!(found, [false, true, true, true, false, true]);
        assert!(!Unclaimed::default().contains(0));
    }
}

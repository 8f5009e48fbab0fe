//! What hosts report about their engines. Whoever has the engines' key can act as a relay, so a relay is believed only
//! about its own host and its engines, and no number in its reports may exceed what was sent there. A relay that reports
//! anything else is expelled.

use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::limits::{CLAIM_SLOTS, LAST_OUTPUT_BYTES, MAX_HOST_NAME_BYTES};

use crate::tasks::TaskState;
use crate::{Controller, Nanos, Output};

/// Maximum length of an engine's unique name, in bytes.
const MAX_UUID_BYTES: usize = 64;
/// Bytes that are not text take three bytes as text.
const MAX_LAST_OUTPUT_BYTES: usize = 3 * LAST_OUTPUT_BYTES;
const MAX_REASON_BYTES: usize = 4096;

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
    pub fn new(mut listed: Vec<u32>, on_the_way: (u32, u32)) -> Self {
        listed.sort_unstable();
        Self { listed, on_the_way }
    }

    pub fn contains(&self, offer: u32) -> bool {
        let (first, n) = self.on_the_way;
        offer.wrapping_sub(first) < n || self.listed.binary_search(&offer).is_ok()
    }
}

impl Controller {
    /// Whether an engine has been offered an unfinished task: only then is its value worth fetching.
    pub fn is_offered(&self, engine: EngineId, key: TaskKey) -> bool {
        let task = self.tasks.get(key);
        task.is_some_and(|task| matches!(task.state, TaskState::Offered(at, _) if at == engine))
    }

    /// Whether what a host reports about an engine is to be believed.
    pub(crate) fn may_report(
        &mut self,
        host: HostId,
        engine: EngineId,
        out: &mut Vec<Output>,
    ) -> bool {
        if !self.knows(host) {
            return false;
        }
        let is_its_own = self.host_of(engine) == host;
        if !is_its_own {
            self.expel(host, out);
        }
        is_its_own
    }

    pub(crate) fn on_report(
        &mut self,
        now: Nanos,
        host: HostId,
        report: EngineReport,
        out: &mut Vec<Output>,
    ) {
        let is_believed = match report.engine() {
            Some(engine) => self.may_report(host, engine, out),
            None => self.knows(host),
        };
        if !is_believed {
            return;
        }
        match report {
            EngineReport::Up(info) => {
                if info.uuid.len() > MAX_UUID_BYTES || info.host.len() > MAX_HOST_NAME_BYTES {
                    self.expel(host, out);
                    return;
                }
                self.on_engine_up(now, info, out);
            }
            EngineReport::Down {
                engine,
                unclaimed_offers,
                next_offer,
            } => {
                let known = self.engines.get(engine.0 as usize);
                let Some(known) = known.filter(|e| e.is_connected()) else {
                    self.totals.ignored += 1;
                    return;
                };
                let n = known.offers().n_on_the_way(next_offer);
                let Some(n) = n.filter(|_| unclaimed_offers.len() <= CLAIM_SLOTS) else {
                    self.expel(host, out); // The report counts offers that were never made.
                    return;
                };
                let unclaimed = Unclaimed::new(unclaimed_offers, (next_offer, n));
                self.on_engine_down(now, engine, &unclaimed, out);
            }
            EngineReport::Revoked { engine, key, won } => {
                self.on_revoked(now, engine, key, won, out);
            }
            EngineReport::Waits { engine, event } => self.on_engine_event(now, engine, event, out),
            EngineReport::ForkServer(mut event) => {
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
                self.on_fork_server_event(now, host, event, out);
            }
            EngineReport::Delivered { engine, key } => self.on_delivered(now, engine, key),
            EngineReport::Undeliverable {
                engine,
                key,
                mut reason,
            } => {
                keep_end(&mut reason, MAX_REASON_BYTES);
                self.on_undeliverable(now, engine, key, reason, out);
            }
        }
    }

    /// Whether a host is connected; what another one says is too late.
    pub(crate) fn knows(&mut self, host: HostId) -> bool {
        let is_up = self.is_host_up(host);
        self.totals.ignored += u64::from(!is_up);
        is_up
    }

    /// Cuts off a relay that reports something impossible. Its engines, and only they, are lost, as if it had died. What
    /// the controller's own host reports is ignored.
    pub(crate) fn expel(&mut self, host: HostId, out: &mut Vec<Output>) {
        self.totals.ignored += 1;
        if host != HostId::CONTROLLER {
            out.push(Output::Expel { host });
        }
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

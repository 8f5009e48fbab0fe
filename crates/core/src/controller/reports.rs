//! What hosts report about their engines.

use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::HostId;
use broadleaf_proto::limits::{CLAIM_SLOTS, LAST_OUTPUT_BYTES};

use super::Controller;
use super::trust::is_believable;
use crate::engines::unclaimed::Unclaimed;
use crate::{Nanos, Output};

/// Bytes that are not text take three bytes as text.
const MAX_LAST_OUTPUT_BYTES: usize = 3 * LAST_OUTPUT_BYTES;
const MAX_REASON_BYTES: usize = 4096;

/// Truncates a text for people to its last bytes.
fn keep_end(text: &mut String, max_bytes: usize) {
    let excess = text.len().saturating_sub(max_bytes);
    let cut = (excess..=text.len()).find(|at| text.is_char_boundary(*at));
    text.drain(..cut.unwrap_or(0));
}

impl Controller {
    pub(super) fn on_report(
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
                if !is_believable(&info) {
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
}

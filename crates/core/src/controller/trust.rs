//! Whom to believe. Whoever has the engines' key can act as a relay, so a relay is believed only about its own host and its
//! engines, and no number in its reports may exceed what was sent there. A relay that reports anything else is expelled.

use broadleaf_proto::control::EngineInfo;
use broadleaf_proto::ids::{EngineId, HostId};
use broadleaf_proto::limits::MAX_HOST_NAME_BYTES;

use super::Controller;
use crate::Output;

/// Maximum length of an engine's unique name, in bytes.
const MAX_UUID_BYTES: usize = 64;

/// Whether an engine can have said this of itself.
pub(super) fn is_believable(info: &EngineInfo) -> bool {
    info.uuid.len() <= MAX_UUID_BYTES && info.host.len() <= MAX_HOST_NAME_BYTES
}

impl Controller {
    /// Whether what a host reports about an engine is to be believed.
    pub(super) fn may_report(
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

    /// Whether a host is connected; what another one says is too late.
    pub(super) fn knows(&mut self, host: HostId) -> bool {
        let is_up = self.is_host_up(host);
        self.totals.ignored += u64::from(!is_up);
        is_up
    }

    /// Cuts off a relay that reports something impossible. Its engines, and only they, are lost, as if it had died. What
    /// the controller's own host reports is ignored.
    pub(super) fn expel(&mut self, host: HostId, out: &mut Vec<Output>) {
        self.totals.ignored += 1;
        if host != HostId::CONTROLLER {
            out.push(Output::Expel { host });
        }
    }
}

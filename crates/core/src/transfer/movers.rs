//! Which hosts can send each other payload by MPI.

use broadleaf_proto::MoverRank;
use broadleaf_proto::ids::HostId;

use super::Transfers;

impl Transfers {
    /// A host's mover has connected, or is gone. Transfers under way continue as they are; the
    /// hosts handle the change themselves.
    pub fn on_mover(&mut self, host: HostId, mover: Option<MoverRank>) {
        match mover {
            Some(mover) => self.movers.insert(host, mover),
            None => self.movers.remove(&host),
        };
    }

    /// A host's mover.
    pub fn mover_of(&self, host: HostId) -> Option<MoverRank> {
        self.movers.get(&host).copied()
    }

    /// The mover of `from`, if bytes from there to `to` should travel by MPI: both hosts have a
    /// mover, in the same world.
    pub fn mover_between(&self, from: HostId, to: HostId) -> Option<MoverRank> {
        let (source, target) = (self.movers.get(&from)?, self.movers.get(&to)?);
        (source.world == target.world).then_some(*source)
    }
}

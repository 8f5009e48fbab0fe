//! Which hosts can bring each other payload by MPI.

use broadleaf_proto::MoverRank;
use broadleaf_proto::ids::HostId;

use super::Transfers;

impl Transfers {
    /// A host's mover is there, or gone. What travels goes on as it does; the hosts see to that themselves.
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

    /// The mover of `from` where bytes from there to `to` are to come by MPI: both have one, and in the same world.
    pub fn mover_between(&self, from: HostId, to: HostId) -> Option<MoverRank> {
        let (source, target) = (self.movers.get(&from)?, self.movers.get(&to)?);
        (source.world == target.world).then_some(*source)
    }
}

//! This host's mover, as the node's own thread sees it: accepted, announced to the controller, and
//! handed to the payload plane.

use broadleaf_proto::control::{self, Refusal, RefusalKind, Welcome};
use broadleaf_proto::relay::RelayEvent;
use broadleaf_proto::{FrameKind, HostId, MoverRank, ObjectId, SegmentRef};

use crate::node::Node;
use crate::payload::PlaneCommand;

impl Node {
    /// A mover says hello.
    pub(crate) fn on_mover_hello(&mut self, token: usize, welcome: &Welcome, mover: MoverRank) {
        if let Err(message) = self.may_take_mover() {
            let kind = RefusalKind::Full;
            self.refuse(token, &Refusal { kind, message });
            return;
        }
        self.send(token, FrameKind::Welcome, &control::encode(welcome));
        if let Some(link) = self.release_peer(token) {
            let link = Box::new(link);
            self.objects.mover = Some(mover);
            self.objects.order(PlaneCommand::Mover { link, mover });
            self.tell_of_mover(Some(mover));
        }
    }

    fn may_take_mover(&mut self) -> Result<(), String> {
        let options = &self.config.options;
        if options.payload == "tcp" {
            return Err(
                "this cluster moves payload over TCP: start it with the option payload=\"mpi\" to use movers".to_owned(),
            );
        }
        if !self.role.is_relay() {
            self.start_plane().map_err(|error| error.to_string())?;
        }
        if self.objects.is_encrypted && self.config.options.payload_trust != "fabric" {
            return Err(
                "this cluster encrypts payload, and MPI does not: if nobody else can read what \
                MPI sends, start the cluster with the option payload_trust=\"fabric\""
                    .to_owned(),
            );
        }
        match self.objects.mover {
            Some(other) => Err(format!(
                "this host already has a mover, rank {} of its world: start one on each host",
                other.rank
            )),
            None => Ok(()),
        }
    }

    /// The payload plane has lost the mover.
    pub(crate) fn on_mover_gone(&mut self) {
        self.objects.mover = None;
        self.tell_of_mover(None);
    }

    fn tell_of_mover(&mut self, mover: Option<MoverRank>) {
        if self.role.is_relay() {
            self.tell_controller(&RelayEvent::Mover(mover));
        } else {
            let transfers = &mut self.objects.transfers;
            transfers.on_mover(HostId::CONTROLLER, mover);
        }
    }

    /// Has the payload plane serve a range of a segment of this host.
    pub(crate) fn provide(&self, object: ObjectId, range: &SegmentRef, chunk_bytes: u32) {
        let Some(bytes) = self.segments.map(range) else {
            return; // The object is refused to hosts that ask for it.
        };
        let is_for_mpi = self.config.options.payload != "tcp";
        // Without a descriptor the object travels over TCP.
        let segment = self.segments.fd(range.segment).filter(|_| is_for_mpi);
        let segment = segment.and_then(|fd| fd.try_clone_to_owned().ok());
        self.objects.order(PlaneCommand::Provide {
            object,
            bytes,
            chunk_bytes,
            memory: segment.map(|segment| (segment, range.offset_bytes)),
        });
    }
}

//! Newtype ids. Each says what it names and who assigns it.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);
    };
}

id!(/// One connected client; handed out by the controller.
    ClientId(u32));
id!(/// An engine slot of the cluster. An engine that is started again keeps it.
    EngineId(u32));
id!(/// One task as its client numbers it: consecutive from 0, never reused by that client.
    TaskSeq(u64));
id!(/// One task as the controller knows it: slot in the low half, generation in the high half.
    TaskKey(u64));
id!(/// A function as one peer of a connection names it (client-local towards the controller,
    /// controller-global towards engines).
    FunctionId(u32));
id!(/// A set of task options as a client names it. `OptionsId(0)` is predefined: balanced, all defaults.
    OptionsId(u32));
id!(/// A shared-memory segment, unique on its host: the owner's token in the high half.
    SegmentId(u64));
id!(/// A host of the cluster; handed out by the controller, whose own is 0, and never used again.
    HostId(u32));
id!(/// Bytes that travel between hosts and never change. An id is never used again; its high 24 bits
    /// are the number of the host that created the object.
    ObjectId(u64));
id!(/// First 16 bytes of the SHA-256 of a function's pickled content.
    FunctionHash([u8; 16]));

impl FunctionHash {
    /// Its first bytes: enough to tell the functions of a cluster apart in displays.
    pub fn tag(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_le_bytes([a, b, c, d])
    }
}

impl HostId {
    /// The controller's own.
    pub const CONTROLLER: Self = Self(0);
}

impl ObjectId {
    /// The `number`th object that a host creates.
    pub fn new(host: HostId, number: u64) -> Self {
        Self(u64::from(host.0) << 40 | number & ((1 << 40) - 1))
    }
    /// The host that created it.
    pub fn origin(self) -> HostId {
        HostId((self.0 >> 40) as u32)
    }
}

impl TaskKey {
    /// Joins a slab slot and its generation.
    pub fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }
    /// The slab slot.
    pub fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
    /// The slot's generation, which tells a stale key from a live one.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

//! What a mover says to the payload plane of its host, and what other hosts ask it to be told. However they lie, an
//! object is received in one way at a time, memory is held as long as MPI may use it and no longer, and the mover is
//! told nothing that MPI cannot do.

use std::collections::BTreeMap;

use broadleaf_core::transfer::flows::{Direction, Flows};
use broadleaf_proto::mover::{
    Flow, Landing, MAX_FLOWS, MAX_PIECE_BYTES, MOVER_TAGS, MoverEvent, MoverRank,
};
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{FrameKind, ObjectId, control};

use super::super::choices::Choices;

const WORLD: u64 = 5;
const OURS: MoverRank = MoverRank {
    world: WORLD,
    rank: 1,
};
const N_OBJECTS: u32 = 4;
const OBJECT_BYTES: u64 = 8 << 20;
const PIECE_BYTES: u32 = 1 << 18;

/// The first byte says whether frames follow, or choices.
pub fn run(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let mut trial = Trial::new();
    if mode % 2 == 0 {
        trial.frames(data);
    } else {
        let mut choices = Choices::new(data);
        while !choices.is_empty() {
            trial.choose(&mut choices);
            trial.check();
        }
    }
    trial.is_gone();
}

/// A flow as the mover knows it.
struct Told {
    object: ObjectId,
    direction: Direction,
    end_bytes: u64,
    /// Up to where an object that is received has memory.
    room_bytes: u64,
}

struct Trial {
    flows: Flows,
    now: u64,
    has_mover: bool,
    /// What the mover was told, and has not ended.
    told: BTreeMap<u32, Told>,
}

impl Trial {
    /// Two objects come and two are sent.
    fn new() -> Self {
        let mut trial = Self {
            flows: Flows::default(),
            now: 1_000_000_000,
            has_mover: false,
            told: BTreeMap::new(),
        };
        trial.comes();
        for object in [0, 1] {
            trial.receive(ObjectId(object), WORLD, 0);
        }
        trial.make_room();
        let landing = Landing {
            mover: MoverRank {
                world: WORLD,
                rank: 2,
            },
            tag: 3,
            piece_bytes: PIECE_BYTES,
        };
        for object in [1, 2] {
            trial.send(ObjectId(object), landing, 0);
        }
        assert_eq!(trial.told.len(), 4);
        trial
    }

    fn frames(&mut self, mut data: &[u8]) {
        while let [kind, low, high, rest @ ..] = data {
            let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (body, rest) = rest.split_at(len);
            data = rest;
            if self.frame(*kind, body).is_none() {
                return; // The link is closed.
            }
            self.check();
        }
    }

    fn frame(&mut self, kind: u8, body: &[u8]) -> Option<()> {
        match FrameKind::try_from(kind).ok()? {
            FrameKind::MoverEvent => match control::decode(body).ok()? {
                MoverEvent::Moved { flow, end_bytes } => self.moved(flow, end_bytes),
                MoverEvent::Ended { flow } => self.ended(flow),
            },
            // From another host, for this host's mover.
            FrameKind::PayloadCommand => {
                if let PayloadCommand::Pull {
                    object,
                    offset_bytes,
                    landing: Some(landing),
                    ..
                } = control::decode(body).ok()?
                {
                    self.send(object, landing, offset_bytes);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn choose(&mut self, choices: &mut Choices<'_>) {
        let object = ObjectId(choices.below(N_OBJECTS).into());
        let flow = match choices.below(4) {
            0 => choices.number() as u32,
            _ => choices.below(16),
        };
        match choices.below(13) {
            0 => self.comes(),
            1 => self.is_gone(),
            2 => self.receive(object, 4 + choices.number() % 3, choices.number()),
            3 => {
                let landing = Landing {
                    mover: MoverRank {
                        world: 4 + choices.number() % 3,
                        rank: choices.number() as u32,
                    },
                    tag: choices.number() as u32,
                    piece_bytes: choices.number() as u32,
                };
                self.send(object, landing, choices.number());
            }
            4 => {
                self.flows.on_ready(flow, choices.number());
            }
            5 => self.flows.on_waiting(self.now, object),
            6 => {
                let only = [None, Some(Direction::In), Some(Direction::Out)];
                let only = only[choices.below(3) as usize];
                for stopped in self.flows.stop(self.now, object, only) {
                    let told = &self.told[&stopped];
                    assert!(told.object == object && only.is_none_or(|d| d == told.direction));
                    // The mover is told once.
                    assert!(!self.flows.stop_one(self.now, stopped));
                }
            }
            7 => {
                for abandoned in self.flows.abandon(self.now, object) {
                    let told = &self.told[&abandoned];
                    assert_eq!((told.object, told.direction), (object, Direction::In));
                }
            }
            8 => self.flows.forget(object),
            9 => {
                self.now = self.now.saturating_add(choices.number());
                if self.flows.is_overdue(self.now) {
                    assert!(self.has_mover && !self.told.is_empty());
                    assert!(self.flows.mover().is_none());
                }
            }
            10 => self.moved(flow, choices.number()),
            11 => self.ended(flow),
            _ => self.make_room(),
        }
    }

    fn comes(&mut self) {
        if !self.has_mover {
            self.has_mover = true;
            self.flows.on_mover(OURS);
        }
    }

    fn is_gone(&mut self) {
        self.has_mover = false;
        let told = std::mem::take(&mut self.told);
        let open: Vec<_> = told
            .into_values()
            .map(|t| (t.object, t.direction))
            .collect();
        assert_eq!(self.flows.on_gone(), open);
        self.check();
    }

    fn receive(&mut self, object: ObjectId, world: u64, from_bytes: u64) {
        let from = Some(MoverRank { world, rank: 0 });
        let range = (from_bytes.min(OBJECT_BYTES), OBJECT_BYTES);
        let begun = self
            .flows
            .receive(self.now, object, from, range, PIECE_BYTES);
        if let Some((flow, landing)) = begun {
            assert_eq!((landing.mover, landing.tag), (OURS, flow.tag));
            let mut told = self.told.values();
            assert!(!told.any(|t| t.object == object && t.direction == Direction::In));
            self.tell(&flow, object, Direction::In, world);
        }
    }

    fn send(&mut self, object: ObjectId, to: Landing, from_bytes: u64) {
        let range = (from_bytes, OBJECT_BYTES);
        if let Some(flow) = self.flows.send(self.now, object, to, range, 4096) {
            self.tell(&flow, object, Direction::Out, to.mover.world);
        }
    }

    fn tell(&mut self, flow: &Flow, object: ObjectId, direction: Direction, world: u64) {
        assert!(self.has_mover && world == WORLD);
        assert!(flow.tag < MOVER_TAGS);
        assert!((1..=MAX_PIECE_BYTES).contains(&flow.piece_bytes));
        assert!(flow.from_bytes <= flow.len_bytes && flow.len_bytes == OBJECT_BYTES);
        let told = Told {
            object,
            direction,
            end_bytes: flow.from_bytes,
            room_bytes: flow.from_bytes,
        };
        assert!(self.told.insert(flow.flow, told).is_none());
    }

    fn make_room(&mut self) {
        for (flow, object, end_bytes) in self.flows.wants_memory() {
            let told = self.told.get_mut(&flow).expect("a flow of the mover's");
            assert_eq!((told.object, told.direction), (object, Direction::In));
            assert!(told.room_bytes < end_bytes && end_bytes <= OBJECT_BYTES);
            assert!(self.flows.on_memory(self.now, flow, end_bytes));
            told.room_bytes = end_bytes;
        }
    }

    fn moved(&mut self, flow: u32, end_bytes: u64) {
        let Some((object, from_bytes)) = self.flows.on_moved(self.now, flow, end_bytes) else {
            return;
        };
        let told = self.told.get_mut(&flow).expect("a flow of the mover's");
        assert_eq!((told.object, told.direction), (object, Direction::In));
        // Nothing counts twice.
        assert!(from_bytes == told.end_bytes && from_bytes < end_bytes);
        // Nothing is there that has no memory.
        assert!(end_bytes <= told.room_bytes);
        told.end_bytes = end_bytes;
    }

    fn ended(&mut self, flow: u32) {
        let told = self.told.remove(&flow).map(|t| (t.object, t.direction));
        assert_eq!(self.flows.on_ended(flow), told);
    }

    fn check(&self) {
        assert!(self.told.len() <= MAX_FLOWS);
        assert_eq!(self.flows.is_busy(), !self.told.is_empty());
        for object in (0..N_OBJECTS).map(|o| ObjectId(o.into())) {
            let of_it = || self.told.values().filter(|t| t.object == object);
            assert_eq!(self.flows.holds(object), of_it().next().is_some());
            let is_received = of_it().any(|t| t.direction == Direction::In);
            assert_eq!(self.flows.is_receiving(object), is_received);
        }
    }
}

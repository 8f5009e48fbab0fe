//! A client on another host and its large results: the real machines on both sides, with links that
//! delay, a payload connection that fails, too little memory, and values that are dropped at any
//! time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_core::transfer::cost::Topology;
use broadleaf_core::transfer::values::{ValueCommand, Values};
use broadleaf_core::transfer::{TopologyChoice, TransferCommand, Transfers};
use broadleaf_proto::relay::{Fetch, Progress, Source};
use broadleaf_proto::{HostId, ObjectId};

use crate::random::Random;

const CLIENT: HostId = HostId(1);
const RELAY: HostId = HostId(2);
const RECORDS: u64 = 40;
const OBJECTS: u64 = 8;
const LEN_BYTES: u64 = 1 << 21;

/// A record: its number, and the objects that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    number: u64,
    objects: Vec<ObjectId>,
}

/// From the controller to the client, in order.
enum Down {
    Fetch(Fetch),
    Record(Record),
}

/// From the client to the controller, in order.
enum Up {
    Fetched(ObjectId, bool),
}

#[derive(Default)]
struct World {
    transfers: Transfers,
    values: Values<Record>,
    down: VecDeque<Down>,
    up: VecDeque<Up>,
    /// Unfinished orders, by object: while there are any, the controller holds the object's bytes.
    kept: BTreeMap<ObjectId, u64>,
    /// What the client's payload plane is getting, or has.
    getting: BTreeSet<ObjectId>,
    has: BTreeSet<ObjectId>,
    failed: BTreeSet<ObjectId>,
    /// Delivered values, until they are dropped.
    alive: Vec<Record>,
    ended: BTreeMap<u64, bool>,
}

/// The result of a run of one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarOutcome {
    /// Number of records whose values arrived.
    pub delivered: u64,
    /// Number of records whose values did not arrive.
    pub given_up: u64,
    /// Number of objects that were fetched again after they had been dropped.
    pub again: u64,
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn run_far_client(seed: u64) -> Result<FarOutcome, String> {
    let mut random = Random::new(seed);
    let mut world = World::default();
    let mut outcome = FarOutcome::default();
    world.transfers.on_client_up(CLIENT);
    world.transfers.on_host_up(RELAY, true);
    let mut got = BTreeSet::new();
    let mut sent = 0;
    let (fails, lacks_memory) = (random.below(10), random.below(10));
    while sent < RECORDS || world.is_busy() {
        match random.below(6) {
            0 if sent < RECORDS => {
                world.send(sent, &mut random);
                sent += 1;
            }
            1 => world.on_down(&mut random, lacks_memory, &mut got, &mut outcome)?,
            2 => world.on_up(),
            3 => world.move_payload(&mut random, fails)?,
            4 => world.drop_value(&mut random)?,
            _ => {}
        }
        world
            .values
            .check()
            .and_then(|()| world.transfers.check())
            .map_err(|error| format!("seed {seed}: {error}"))?;
    }
    for delivered in world.ended.values() {
        outcome.delivered += u64::from(*delivered);
        outcome.given_up += u64::from(!delivered);
    }
    if world.ended.len() as u64 != RECORDS {
        return Err(format!(
            "seed {seed}: {} of {RECORDS} records ended",
            world.ended.len()
        ));
    }
    if !world.values.is_empty() || !world.getting.is_empty() || !world.has.is_empty() {
        return Err(format!(
            "seed {seed}: the client holds something that nobody needs"
        ));
    }
    if !world.kept.is_empty() {
        return Err(format!(
            "seed {seed}: the controller holds {:?}",
            world.kept
        ));
    }
    Ok(outcome)
}

impl World {
    fn is_busy(&self) -> bool {
        let on_the_way = !self.down.is_empty() || !self.up.is_empty();
        on_the_way || !self.alive.is_empty() || !self.getting.is_empty()
    }

    /// The controller sends a result: an order for each object that it names, then the record.
    /// Results may share bytes, and one may name an object twice.
    fn send(&mut self, number: u64, random: &mut Random) {
        let n = 1 + random.below(3);
        let objects: Vec<ObjectId> = (0..n)
            .map(|_| ObjectId(1 + random.below(OBJECTS)))
            .collect();
        for object in &objects {
            let mut orders = Vec::new();
            let mut hosts = vec![CLIENT];
            if random.chance(20) {
                hosts.push(RELAY);
            }
            let topology = TopologyChoice::Fixed(Topology::Flat);
            self.transfers.want(
                0,
                *object,
                LEN_BYTES,
                HostId::CONTROLLER,
                &hosts,
                topology,
                &mut orders,
            );
            let chunk_bytes = self.transfers.chunk_bytes(*object).unwrap_or_default();
            *self.kept.entry(*object).or_default() += 1;
            self.down.push_back(Down::Fetch(Fetch {
                object: *object,
                len_bytes: LEN_BYTES,
                chunk_bytes,
                sources: vec![Source {
                    host: HostId::CONTROLLER,
                    address: None,
                    mover: None,
                }],
                epoch: 0,
            }));
        }
        self.down
            .push_back(Down::Record(Record { number, objects }));
    }

    fn on_down(
        &mut self,
        random: &mut Random,
        lacks_memory: u64,
        got: &mut BTreeSet<ObjectId>,
        outcome: &mut FarOutcome,
    ) -> Result<(), String> {
        let mut orders = Vec::new();
        match self.down.pop_front() {
            Some(Down::Fetch(fetch)) => self.values.on_fetch(fetch, &mut orders),
            Some(Down::Record(record)) => {
                let named: Vec<_> = record.objects.iter().map(|o| (*o, LEN_BYTES)).collect();
                self.values.on_record(record, &named, &mut orders);
            }
            None => {}
        }
        if let Some(ValueCommand::Get(fetch)) = orders.first() {
            outcome.again += u64::from(!got.insert(fetch.object));
            if random.chance(lacks_memory) {
                let object = fetch.object;
                orders.clear();
                self.values.on_failed(object, "no memory", &mut orders);
            }
        }
        self.carry_out(orders)
    }

    fn on_up(&mut self) {
        let Some(Up::Fetched(object, is_there)) = self.up.pop_front() else {
            return;
        };
        if let Some(kept) = self.kept.get_mut(&object) {
            *kept -= 1;
            if *kept == 0 {
                self.kept.remove(&object);
            }
        }
        let mut orders: Vec<TransferCommand> = Vec::new();
        if is_there {
            let progress = Progress {
                object,
                have_bytes: LEN_BYTES,
                is_complete: true,
                source: HostId::CONTROLLER,
                receiving_ns: 1,
                wire_bytes: LEN_BYTES,
                resumed_at: Vec::new(),
                corrupt_chunks: 0,
                mover_bytes: 0,
            };
            self.transfers
                .on_progress(0, CLIENT, &progress, &mut orders);
        } else {
            self.transfers.on_failed(CLIENT, object, &mut orders);
        }
    }

    /// An object arrives, or fails to. Until then the controller must hold its bytes.
    fn move_payload(&mut self, random: &mut Random, fails: u64) -> Result<(), String> {
        let n = random.below(self.getting.len() as u64) as usize;
        let Some(object) = self.getting.iter().nth(n).copied() else {
            return Ok(());
        };
        if !self.kept.contains_key(&object) {
            return Err(format!(
                "{object:?} is being pulled, but the controller no longer holds it"
            ));
        }
        self.getting.remove(&object);
        let mut orders = Vec::new();
        if random.chance(fails) {
            self.failed.insert(object);
            self.values
                .on_failed(object, "the connection broke", &mut orders);
        } else {
            self.has.insert(object);
            self.values.on_here(object, &mut orders);
        }
        self.carry_out(orders)
    }

    fn drop_value(&mut self, random: &mut Random) -> Result<(), String> {
        if self.alive.is_empty() {
            return Ok(());
        }
        let n = random.below(self.alive.len() as u64) as usize;
        let record = self.alive.swap_remove(n);
        let mut orders = Vec::new();
        for object in record.objects {
            self.values.on_released(object, &mut orders);
        }
        self.carry_out(orders)
    }

    fn carry_out(&mut self, orders: Vec<ValueCommand<Record>>) -> Result<(), String> {
        for order in orders {
            match order {
                ValueCommand::Get(fetch) => {
                    if self.has.contains(&fetch.object) || !self.getting.insert(fetch.object) {
                        return Err(format!("{:?} is fetched twice", fetch.object));
                    }
                }
                ValueCommand::Deliver(record) => {
                    if let Some(missing) = record.objects.iter().find(|o| !self.has.contains(o)) {
                        return Err(format!("a value was delivered without {missing:?}"));
                    }
                    self.end(&record, true)?;
                    self.alive.push(record);
                }
                ValueCommand::GiveUp(record, _) => self.end(&record, false)?,
                ValueCommand::Drop(object) => {
                    self.getting.remove(&object);
                    self.has.remove(&object);
                    self.failed.remove(&object);
                    if self
                        .alive
                        .iter()
                        .any(|record| record.objects.contains(&object))
                    {
                        return Err(format!("{object:?} was dropped while a value needs it"));
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, record: &Record, is_there: bool) -> Result<(), String> {
        for object in &record.objects {
            self.up.push_back(Up::Fetched(*object, is_there));
        }
        match self.ended.insert(record.number, is_there) {
            None => Ok(()),
            Some(_) => Err(format!("record {} ended twice", record.number)),
        }
    }
}

//! Values that are sent as objects to a client on another host: which have arrived, and which records wait for them.
//!
//! A pure machine. Right before a record, the controller orders the client to get each object that the record names.
//! An object is dropped with the last value that lies in it, once no record that names it is on its way.

use std::collections::BTreeMap;

use broadleaf_proto::ids::ObjectId;
use broadleaf_proto::relay::Fetch;

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueCommand<R> {
    /// Get an object.
    Get(Fetch),
    /// All that a record names has arrived.
    Deliver(R),
    /// Something that a record names will not arrive, for this reason.
    GiveUp(R, String),
    /// Forget an object, whether it has arrived or is still on its way.
    Drop(ObjectId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Arrival {
    Coming,
    Here,
    Failed(String),
}

#[derive(Debug)]
struct Incoming {
    arrival: Arrival,
    len_bytes: u64,
    /// Number of records that will name it.
    n_announced: u64,
    /// How often it is named by waiting records and by values.
    n_named: u64,
    /// The records that wait for it.
    waiting: Vec<u64>,
}

#[derive(Debug)]
struct Waiting<R> {
    record: R,
    objects: Vec<ObjectId>,
    n_missing: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Values<R> {
    objects: BTreeMap<ObjectId, Incoming>,
    waiting: BTreeMap<u64, Waiting<R>>,
    last: u64,
}

impl<R> Default for Values<R> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<R> Values<R> {
    /// The controller announces an object that a later record will name.
    pub fn on_fetch(&mut self, fetch: Fetch, out: &mut Vec<ValueCommand<R>>) {
        let known = self.objects.get_mut(&fetch.object);
        if let Some(incoming) = known {
            incoming.n_announced += 1;
            return;
        }
        let incoming = Incoming {
            arrival: Arrival::Coming,
            len_bytes: fetch.len_bytes,
            n_announced: 1,
            n_named: 0,
            waiting: Vec::new(),
        };
        self.objects.insert(fetch.object, incoming);
        out.push(ValueCommand::Get(fetch));
    }

    /// A record arrived that names these objects, each with its length. An object that was not announced, or not with
    /// this length, will not arrive.
    pub fn on_record(
        &mut self,
        record: R,
        named: &[(ObjectId, u64)],
        out: &mut Vec<ValueCommand<R>>,
    ) {
        let mut objects = Vec::with_capacity(named.len());
        let mut n_missing = 0;
        let mut failure = None;
        self.last += 1;
        for (object, len_bytes) in named {
            let known = self.objects.get_mut(object);
            let Some(incoming) = known.filter(|i| i.n_announced > 0) else {
                failure = Some("it was never sent".to_owned());
                continue;
            };
            incoming.n_announced -= 1;
            incoming.n_named += 1;
            objects.push(*object);
            if incoming.len_bytes != *len_bytes {
                failure = Some("it names more than its data".to_owned());
            }
            match &incoming.arrival {
                Arrival::Here => {}
                Arrival::Coming => {
                    n_missing += 1;
                    incoming.waiting.push(self.last);
                }
                Arrival::Failed(reason) => failure = Some(reason.clone()),
            }
        }
        if n_missing == 0 && failure.is_none() {
            out.push(ValueCommand::Deliver(record));
            return;
        }
        let waiting = Waiting {
            record,
            objects,
            n_missing,
        };
        self.waiting.insert(self.last, waiting);
        if let Some(reason) = failure {
            self.give_up(self.last, reason, out);
        }
    }

    /// An object has arrived completely.
    pub fn on_here(&mut self, object: ObjectId, out: &mut Vec<ValueCommand<R>>) {
        let Some(incoming) = self.objects.get_mut(&object) else {
            return;
        };
        incoming.arrival = Arrival::Here;
        for number in std::mem::take(&mut incoming.waiting) {
            let Some(waiting) = self.waiting.get_mut(&number) else {
                continue;
            };
            waiting.n_missing -= 1;
            if waiting.n_missing == 0
                && let Some(waiting) = self.waiting.remove(&number)
            {
                out.push(ValueCommand::Deliver(waiting.record));
            }
        }
    }

    /// An object will not arrive.
    pub fn on_failed(&mut self, object: ObjectId, reason: &str, out: &mut Vec<ValueCommand<R>>) {
        let Some(incoming) = self.objects.get_mut(&object) else {
            return;
        };
        incoming.arrival = Arrival::Failed(reason.to_owned());
        for number in std::mem::take(&mut incoming.waiting) {
            self.give_up(number, reason.to_owned(), out);
        }
    }

    fn give_up(&mut self, number: u64, reason: String, out: &mut Vec<ValueCommand<R>>) {
        // A record that names an object twice is given up once.
        if let Some(waiting) = self.waiting.remove(&number) {
            out.push(ValueCommand::GiveUp(waiting.record, reason));
            for object in waiting.objects {
                self.on_released(object, out);
            }
        }
    }

    /// A delivered value that named an object is gone.
    pub fn on_released(&mut self, object: ObjectId, out: &mut Vec<ValueCommand<R>>) {
        let Some(incoming) = self.objects.get_mut(&object) else {
            return;
        };
        incoming.n_named = incoming.n_named.saturating_sub(1);
        if incoming.n_named == 0 && incoming.n_announced == 0 {
            self.objects.remove(&object);
            out.push(ValueCommand::Drop(object));
        }
    }

    /// Number of objects that have arrived or are on their way.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no such objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Verifies that every record waits for something that is on its way, and that every object is needed.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        for (number, waiting) in &self.waiting {
            let coming = |object: &&ObjectId| {
                let incoming = self.objects.get(object);
                incoming.is_some_and(|i| i.arrival == Arrival::Coming)
            };
            let n_coming = waiting.objects.iter().filter(coming).count();
            if n_coming != waiting.n_missing || n_coming == 0 {
                return Err(format!(
                    "record {number} waits for {} objects, and {n_coming} are under way",
                    waiting.n_missing
                ));
            }
        }
        for (object, incoming) in &self.objects {
            if incoming.n_named == 0 && incoming.n_announced == 0 {
                return Err(format!("{object:?} is there for nothing"));
            }
            if incoming.arrival != Arrival::Coming && !incoming.waiting.is_empty() {
                return Err(format!("{object:?} is waited for, and does not come"));
            }
        }
        Ok(())
    }
}

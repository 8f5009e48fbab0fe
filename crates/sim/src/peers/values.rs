//! Large values of tasks on relays' hosts. They arrive after the ends of their tasks were reported, or never; the
//! controller hears of an end when the value is there, and of what was reported later only then.

use broadleaf_core::relay::Arguments;
use broadleaf_core::returning::{Ending, Returned};
use broadleaf_core::{Input, Nanos};
use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, HostId, ObjectId, SegmentId};
use broadleaf_proto::task::{DoneRecord, Payload, SegmentRef};

use crate::cluster::{Cluster, Event};
use crate::work::job::LARGE_BYTES;

const MS: Nanos = 1_000_000;

fn objects(payload: &Payload) -> impl Iterator<Item = ObjectId> {
    let ranges = payload.segments.iter();
    ranges.map(|range| ObjectId(range.segment.0))
}

/// A large value of a task, as the end of the task names it.
pub(crate) fn object_of(host: HostId, number: u64) -> SegmentRef {
    SegmentRef {
        segment: SegmentId(ObjectId::new(host, number).0),
        offset_bytes: 0,
        len_bytes: LARGE_BYTES,
    }
}

/// Whether the controller must not hear this before the ends of an engine's tasks.
fn is_last_word(report: &EngineReport) -> bool {
    matches!(
        report,
        EngineReport::Down { .. }
            | EngineReport::Waits { .. }
            | EngineReport::ForkServer(
                ForkServerEvent::Exited { .. } | ForkServerEvent::NotStarted { .. }
            )
    )
}

impl Cluster {
    /// The driver read something from a relay's link.
    pub(crate) fn relay_was_heard(&mut self, host: HostId, input: Input) -> Result<(), String> {
        match input {
            Input::Done { engine, record, .. } => self.relay_ends(host, engine, record),
            Input::Report { report, .. } => {
                match self.returning.on_report(self.now, host, report) {
                    Some(report) => self.tell_report(host, report),
                    None => Ok(()),
                }
            }
            input => self.feed(input),
        }
    }

    fn relay_ends(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: DoneRecord,
    ) -> Result<(), String> {
        let (key, controller) = (record.key, &self.controller);
        let is_wanted =
            |key| controller.host_of(engine) == host && controller.is_offered(engine, key);
        match (self.returning).on_done(self.now, host, engine, record, is_wanted) {
            Ending::Tell(record) => self.tell_done(host, engine, record),
            Ending::Fetch(objects) => {
                self.owed_values.insert((engine, key), host);
                for (object, _) in objects {
                    let delay = self.random.time(500 * MS);
                    let has_memory = !self.random.chance(5);
                    let state = if has_memory {
                        self.after(delay, Event::ValueArrives(object));
                        Arguments::Coming
                    } else {
                        Arguments::Failed("simulated: no memory".to_owned())
                    };
                    self.values.insert(object, state);
                }
                self.take_values()
            }
            Ending::Forget(_) => Ok(()),
            Ending::Impossible => {
                self.expel(host);
                Ok(())
            }
        }
    }

    /// A value has arrived, or will not.
    pub(crate) fn value_arrives(&mut self, object: ObjectId) -> Result<(), String> {
        let is_lost = self.random.chance(10);
        let Some(state) = self.values.get_mut(&object) else {
            return Ok(()); // Its host is gone.
        };
        *state = if is_lost {
            Arguments::Failed("simulated".to_owned())
        } else {
            Arguments::Here
        };
        self.take_values()
    }

    fn take_values(&mut self) -> Result<(), String> {
        let (values, mut out) = (&self.values, Vec::new());
        let state = |payload: &Payload| {
            let states = objects(payload).map(|object| values[&object].clone());
            let mut states = states.filter(|state| *state != Arguments::Here);
            states.next().unwrap_or(Arguments::Here)
        };
        self.returning.on_objects(self.now, state, &mut out);
        for returned in out {
            match returned {
                Returned::Done(host, engine, record) => {
                    let is_here = |object| self.values.get(&object) == Some(&Arguments::Here);
                    if !objects(&record.payload).all(is_here) {
                        return Err(format!("{:?} ends before its value is here", record.key));
                    }
                    if self.owed_values.remove(&(engine, record.key)).is_none() {
                        return Err(format!("{:?} ends twice", record.key));
                    }
                    self.tell_done(host, engine, record)?;
                }
                Returned::Report(host, report) => {
                    if let EngineReport::Undeliverable { engine, key, .. } = &report {
                        self.owed_values.remove(&(*engine, *key));
                    }
                    self.tell_report(host, report)?;
                }
                Returned::Forget(objects) => {
                    for object in objects {
                        self.values.remove(&object);
                    }
                }
            }
        }
        Ok(())
    }

    /// A host is gone, and its values with it.
    pub(crate) fn drop_values(&mut self, host: HostId) {
        for object in self.returning.on_host_down(self.now, host) {
            self.values.remove(&object);
        }
        self.owed_values.retain(|_, from| *from != host);
    }

    /// Nothing of a value is left once nobody waits for it.
    pub(crate) fn check_values(&self) -> Result<(), String> {
        if self.owed_values.is_empty() && !self.values.is_empty() {
            return Err(format!("nobody waits for {:?}", self.values));
        }
        Ok(())
    }

    fn tell_done(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: DoneRecord,
    ) -> Result<(), String> {
        self.feed(Input::Done {
            host,
            engine,
            record,
            copy: None,
        })
    }

    fn tell_report(&mut self, host: HostId, report: EngineReport) -> Result<(), String> {
        if let Some(engine) = report.engine().filter(|_| is_last_word(&report)) {
            let mut owed = self.owed_values.iter();
            if let Some(((_, key), _)) = owed.find(|((e, _), from)| *e == engine && **from == host)
            {
                return Err(format!("{report:?} overtakes the value of {key:?}"));
            }
        }
        self.feed(Input::Report { host, report })
    }
}

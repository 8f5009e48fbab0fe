//! Large values of tasks that ended on another host. The controller hears of such an end once the value has been fetched
//! from there, and only then what the host reports afterwards: that the engine died, or waits.
//!
//! So an engine whose values are on their way is still draining them when its death is reported.

use std::collections::BTreeMap;

use broadleaf_proto::control::ForkServerEvent;
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{EngineId, HostId, ObjectId, TaskKey};
use broadleaf_proto::task::{DoneRecord, Payload};
use serde::Serialize;

use crate::forms;
use crate::relay::Arguments;

/// What becomes of a task's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Ending {
    /// Tell the controller now.
    Tell(#[serde(with = "forms::DoneForm")] DoneRecord),
    /// Fetch these objects from the host, each with its length; the end waits for them.
    Fetch(Vec<(ObjectId, u64)>),
    /// Nobody wants the value: let the host forget these objects.
    Forget(Vec<ObjectId>),
    /// No host that keeps to the rules says this: close its link.
    Impossible,
}

/// What the driver must do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Returned {
    /// Tell the controller that a task ended: its value is here.
    Done(
        HostId,
        EngineId,
        #[serde(with = "forms::DoneForm")] DoneRecord,
    ),
    /// Tell the controller what a host reported.
    Report(
        HostId,
        #[serde(serialize_with = "forms::report")] EngineReport,
    ),
    /// Objects are needed no more, neither here nor on the host that they came from.
    Forget(Vec<ObjectId>),
}

/// What an engine has yet to return.
#[derive(Clone, Debug)]
struct Draining {
    host: HostId,
    /// Ends whose values have not arrived; never empty.
    ends: Vec<DoneRecord>,
    /// Reports that come after them.
    reports: Vec<EngineReport>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Returning {
    engines: BTreeMap<EngineId, Draining>,
}

fn objects(payload: &Payload) -> Vec<ObjectId> {
    let ranges = payload.segments.iter();
    ranges.map(|range| ObjectId(range.segment.0)).collect()
}

/// Whether a report must not overtake the ends of tasks before it.
fn follows_ends(report: &EngineReport) -> bool {
    match report {
        EngineReport::Down { .. } | EngineReport::Waits { .. } => true,
        EngineReport::ForkServer(event) => matches!(
            event,
            ForkServerEvent::Exited { .. } | ForkServerEvent::NotStarted { .. }
        ),
        EngineReport::Up(_)
        | EngineReport::Revoked { .. }
        | EngineReport::Delivered { .. }
        | EngineReport::Undeliverable { .. } => false,
    }
}

impl Returning {
    /// A host says that a task ended on one of its engines. `is_wanted` says whether it was offered to that engine, on that
    /// host: memory is taken only for values that were asked for, and only once.
    pub fn on_done(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: DoneRecord,
        is_wanted: impl FnOnce(TaskKey) -> bool,
    ) -> Ending {
        let ranges = &record.payload.segments;
        if ranges.is_empty() {
            return Ending::Tell(record);
        }
        let is_of_host = |object: ObjectId| object.origin() == host;
        let mut named = ranges.iter();
        if !named.all(|r| r.offset_bytes == 0 && is_of_host(ObjectId(r.segment.0))) {
            return Ending::Impossible;
        }
        let comes_already = self.engines.get(&engine).is_some_and(|draining| {
            draining.host != host || draining.ends.iter().any(|end| end.key == record.key)
        });
        if comes_already || !is_wanted(record.key) {
            return Ending::Forget(objects(&record.payload));
        }
        let named = ranges.iter();
        let named = named.map(|range| (ObjectId(range.segment.0), range.len_bytes));
        let named = named.collect();
        let draining = self.engines.entry(engine).or_insert_with(|| Draining {
            host,
            ends: Vec::new(),
            reports: Vec::new(),
        });
        draining.ends.push(record);
        Ending::Fetch(named)
    }

    /// A host reports something about its engines. Returns it unless it has to wait for values.
    pub fn on_report(&mut self, host: HostId, report: EngineReport) -> Option<EngineReport> {
        let draining = report.engine().and_then(|id| self.engines.get_mut(&id));
        let Some(draining) = draining.filter(|draining| draining.host == host) else {
            return Some(report);
        };
        if follows_ends(&report) {
            draining.reports.push(report);
            return None;
        }
        if matches!(report, EngineReport::Up(_)) {
            // Those are about the previous engine of that slot, which the controller gave up long ago.
            draining.reports.clear();
        }
        Some(report)
    }

    /// Objects arrived, or will not. `state` says which of those that a payload names are here.
    pub fn on_objects(&mut self, state: impl Fn(&Payload) -> Arguments, out: &mut Vec<Returned>) {
        self.engines.retain(|engine, draining| {
            let (host, engine) = (draining.host, *engine);
            for record in std::mem::take(&mut draining.ends) {
                let named = match state(&record.payload) {
                    Arguments::Coming => {
                        draining.ends.push(record);
                        continue;
                    }
                    Arguments::Failed(reason) => {
                        let key = record.key;
                        out.push(Returned::Report(
                            host,
                            EngineReport::Undeliverable {
                                engine,
                                key,
                                reason,
                            },
                        ));
                        objects(&record.payload)
                    }
                    Arguments::Here => {
                        let named = objects(&record.payload);
                        out.push(Returned::Done(host, engine, record));
                        named
                    }
                };
                out.push(Returned::Forget(named));
            }
            let is_drained = draining.ends.is_empty();
            if is_drained {
                let reports = draining.reports.drain(..);
                out.extend(reports.map(|report| Returned::Report(host, report)));
            }
            !is_drained
        });
    }

    /// A host is gone: returns the objects that will not arrive from there.
    pub fn on_host_down(&mut self, host: HostId) -> Vec<ObjectId> {
        let mut lost = Vec::new();
        self.engines.retain(|_, draining| {
            if draining.host != host {
                return true;
            }
            lost.extend(draining.ends.iter().flat_map(|end| objects(&end.payload)));
            false
        });
        lost
    }
}

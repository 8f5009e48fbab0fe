//! What an observer is told on each poll: new events, the busiest functions, and objects on their
//! way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use broadleaf_core::transfer::Route;
use broadleaf_core::transfer::cost::Topology;
use broadleaf_core::{Controller, Failure, FunctionTimes, Nanos};
use broadleaf_proto::relay::HostCounts;
use serde::Serialize;

use crate::node::Node;
use crate::reports::ring::{Kind, Record};

/// Maximum number of events in one answer: about 100 bytes of text each.
const MAX_EVENTS: u32 = 20_000;
/// Number of functions in one answer.
const MAX_FUNCTIONS: usize = 50;
/// Number of kinds of errors in one answer, the latest first.
const MAX_FAILURES: usize = 50;
/// Number of hosts of all objects in one answer; the newest objects come first.
const MAX_STOPS: usize = 2_000;

#[derive(Serialize)]
struct Watch {
    /// The `after` of the next poll.
    next: u64,
    /// Number of events recorded since, whether or not they are in the answer.
    recorded: u64,
    events: Vec<Event>,
    /// Names of the functions of these events, by their tags.
    names: BTreeMap<u32, String>,
    functions: Vec<Function>,
    failures: Vec<Failed>,
    transfers: Vec<Transfer>,
    hosts: Vec<Measured>,
}

/// What a relay told of its host since the last poll of some observer.
#[derive(Serialize)]
struct Measured {
    name: String,
    ago_ns: u64,
    at_ns: u64,
    cores: u32,
    busy_ticks: u64,
    all_ticks: u64,
    free_bytes: u64,
    total_bytes: u64,
    in_bytes: u64,
    out_bytes: u64,
    /// Each engine's resident memory.
    engines: BTreeMap<u32, u64>,
}

/// Kind, wall clock in ns, end of a task in ns, and the numbers; the second one is split in two
/// halves, the lower first. Of a task also how long before its start the controller received it and
/// sent it on, in ns, and the bytes of its arguments and of its value. Clocks of hosts differ, so
/// these times may be negative; they are absent where nothing is known.
#[derive(Serialize)]
struct Event(
    &'static str,
    u64,
    u64,
    u32,
    u32,
    u32,
    #[serde(skip_serializing_if = "Option::is_none")] Option<(i64, i64, u64, u64)>,
);

#[derive(Serialize)]
struct Function {
    name: String,
    tag: u32,
    tasks: u64,
    errors: u64,
    total_ns: u64,
    max_ns: u64,
    unfinished: u64,
}

#[derive(Serialize)]
struct Failed {
    function: String,
    tag: u32,
    tasks: u64,
    items: u64,
    engine: u32,
    first_ns: u64,
    last_ns: u64,
    /// JSON, as an engine wrote it.
    text: String,
}

#[derive(Serialize)]
struct Transfer {
    object: u64,
    len_bytes: u64,
    shape: String,
    ago_ns: Nanos,
    stops: Vec<Stop>,
}

#[derive(Serialize)]
struct Stop {
    host: u32,
    parent: u32,
    have_bytes: u64,
    gone: bool,
    /// From the first time the object was needed until the host had it.
    took_ns: Option<Nanos>,
}

impl Node {
    /// The answer to [`Watch`](broadleaf_proto::control::ControlRequest::Watch) as JSON.
    pub(crate) fn watch_json(&self, after: u64, max_events: u32) -> String {
        let (next, events) = self.ring.since(after, max_events.min(MAX_EVENTS) as usize);
        let wall_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64);
        let epoch_ns = wall_ns.saturating_sub(self.epoch.elapsed().as_nanos() as u64);
        let events: Vec<Event> = events.map(|r| Event::new(r, epoch_ns)).collect();
        let controller = self.role.controller();
        let watch = Watch {
            next,
            recorded: next.saturating_sub(after),
            names: controller.map_or_else(BTreeMap::new, |c| names(c, &events)),
            functions: controller.map_or_else(Vec::new, |c| {
                let busiest = c.busiest_functions(MAX_FUNCTIONS);
                busiest.iter().map(Function::from).collect()
            }),
            failures: controller.map_or_else(Vec::new, |c| {
                let latest = c.failures();
                latest
                    .into_iter()
                    .take(MAX_FAILURES)
                    .map(Failed::from)
                    .collect()
            }),
            transfers: self.transfers(),
            hosts: controller.map_or_else(Vec::new, |c| {
                let told = c.measured();
                told.map(|(name, counts, at)| {
                    Measured::new(name, counts, self.now_ns.saturating_sub(at))
                })
                .collect()
            }),
            events,
        };
        serde_json::to_string(&watch).expect("invariant: plain fields serialise infallibly")
    }

    fn transfers(&self) -> Vec<Transfer> {
        let mut routes: Vec<Route> = self.objects.transfers.routes().collect();
        routes.retain(|route| !self.is_probe(route.object));
        routes.sort_by_key(|route| std::cmp::Reverse(route.since_ns));
        let mut n_stops = 0;
        let fits = |route: &&Route| {
            n_stops += route.stops.len();
            n_stops <= MAX_STOPS
        };
        let told = routes.iter().take_while(fits);
        told.map(|route| Transfer::new(route, self.now_ns))
            .collect()
    }
}

/// The names of functions that events name.
fn names(controller: &Controller, events: &[Event]) -> BTreeMap<u32, String> {
    let tags: BTreeSet<u32> = events.iter().map(|event| event.5).collect();
    let called = controller.called_functions();
    called
        .filter(|f| tags.contains(&f.tag))
        .map(|f| (f.tag, text(&f.name)))
        .collect()
}

/// A name in displayable form.
pub fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl Event {
    /// `epoch_ns` is where the controller's clock begins, as wall clock.
    fn new(r: &Record, epoch_ns: u64) -> Self {
        let kind = match r.kind {
            Kind::ClientUp => "client_up",
            Kind::ClientDown => "client_down",
            Kind::EngineUp => "engine_up",
            Kind::EngineDown => "engine_down",
            Kind::Refused => "refused",
            Kind::Malformed => "malformed",
            Kind::Task => "task",
            Kind::FailedTask => "failed_task",
            Kind::Request => "request",
            Kind::HostSilent => "host_silent",
            Kind::HostBack => "host_back",
            Kind::Resumed => "resumed",
        };
        let before_start = |at_ns: u64| r.at_ns.wrapping_sub(epoch_ns + at_ns).cast_signed();
        let way = r.way;
        let way = (way.sent_ns > 0).then(|| {
            (
                before_start(way.received_ns),
                before_start(way.sent_ns),
                way.in_bytes,
                way.out_bytes,
            )
        });
        let (low, high) = (r.b as u32, (r.b >> 32) as u32);
        Self(kind, r.at_ns, r.end_ns, r.a, low, high, way)
    }
}

impl From<&FunctionTimes> for Function {
    fn from(f: &FunctionTimes) -> Self {
        Self {
            name: text(&f.name),
            tag: f.tag,
            tasks: f.times.tasks,
            errors: f.times.errors,
            total_ns: f.times.total_ns,
            max_ns: f.times.max_ns,
            unfinished: f.unfinished,
        }
    }
}

impl From<&Failure> for Failed {
    fn from(f: &Failure) -> Self {
        Self {
            function: text(&f.function),
            tag: f.tag,
            tasks: f.tasks,
            items: f.items,
            engine: f.engine.0,
            first_ns: f.first_ns,
            last_ns: f.last_ns,
            text: text(&f.text),
        }
    }
}

impl Measured {
    fn new(name: String, counts: &HostCounts, ago_ns: Nanos) -> Self {
        Self {
            name,
            ago_ns,
            at_ns: counts.at_ns,
            cores: counts.cores,
            busy_ticks: counts.busy_ticks,
            all_ticks: counts.all_ticks,
            free_bytes: counts.free_bytes,
            total_bytes: counts.total_bytes,
            in_bytes: counts.in_bytes,
            out_bytes: counts.out_bytes,
            engines: counts.engines.iter().map(|(e, n)| (e.0, *n)).collect(),
        }
    }
}

impl Transfer {
    fn new(route: &Route, now: Nanos) -> Self {
        let stops = route.stops.iter().map(|stop| Stop {
            host: stop.host.0,
            parent: stop.parent.0,
            have_bytes: stop.have_bytes,
            gone: stop.is_gone,
            took_ns: stop
                .completed_ns
                .map(|at| at.saturating_sub(route.since_ns)),
        });
        Self {
            object: route.object.0,
            len_bytes: route.len_bytes,
            shape: match route.topology {
                Topology::Flat => "flat".to_owned(),
                Topology::Binomial => "binomial".to_owned(),
                Topology::Chain => "chain".to_owned(),
                Topology::Kary(arity) => format!("tree of arity {arity}"),
            },
            ago_ns: now.saturating_sub(route.since_ns),
            stops: stops.collect(),
        }
    }
}

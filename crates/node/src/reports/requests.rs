//! Requests that the node answers itself: status, trace, log, configuration.

use std::time::Duration;

use broadleaf_core::Counters;
use broadleaf_proto::control::{ControlReply, DeathCause, DeathCertificate};
use serde_json::{Value, json};

use crate::node::Node;

const STATUS_NAMES: [&str; 7] = [
    "ok",
    "error",
    "cancelled",
    "timeout",
    "refused",
    "lost",
    "unmet",
];

const NO_RECORDING: &str = "this cluster does not record its inputs: a recording begins when the cluster starts, with the option record_inputs";

impl Node {
    /// Says what is recorded, and records nothing more if that is wanted.
    pub(crate) fn on_recording(&self, stop: bool) -> ControlReply {
        let Some(recording) = &self.recording else {
            return ControlReply::Failed(NO_RECORDING.to_owned());
        };
        if stop {
            recording.stop();
        }
        ControlReply::Text(recording.to_json())
    }

    /// A piece of what was recorded.
    pub(crate) fn recorded(&self, from_bytes: u64) -> ControlReply {
        match self.recording.as_ref().map(|r| r.read(from_bytes)) {
            Some(Ok(lines)) => ControlReply::Text(lines),
            Some(Err(error)) => ControlReply::Failed(format!("the recording: {error}")),
            None => ControlReply::Failed(NO_RECORDING.to_owned()),
        }
    }

    /// Counters of controller, engines and connections as JSON.
    pub(crate) fn status_json(&self) -> String {
        let counters = self
            .role
            .controller()
            .map(broadleaf_core::Controller::counters)
            .unwrap_or_default();
        let (segments, segment_bytes) = self.segments.totals();
        let (own_segments, own_bytes, warm_bytes, outgoing, incoming) = self.objects.totals();
        let mut links = json!({"reads": 0_u64, "writes": 0_u64, "bytes_in": 0_u64, "bytes_out": 0_u64, "frames_in": 0_u64, "frames_out": 0_u64});
        for (_, peer) in &self.peers {
            let c = peer.link.counters();
            for (name, n) in [
                ("reads", c.reads),
                ("writes", c.writes),
                ("bytes_in", c.bytes_in),
                ("bytes_out", c.bytes_out),
                ("frames_in", c.frames_in),
                ("frames_out", c.frames_out),
            ] {
                let sum = links[name].as_u64().unwrap_or(0) + n;
                links[name] = json!(sum);
            }
        }
        let resolved: serde_json::Map<String, Value> = STATUS_NAMES
            .iter()
            .zip(counters.resolved)
            .map(|(name, n)| ((*name).to_owned(), json!(n)))
            .collect();
        let known = |host| counters.hosts.iter().find(|h| h.host == host);
        let drains = |host| known(host).is_some_and(|h| h.drains);
        let ends_in_s = |host| {
            let left = known(host)?.ends_at?.saturating_sub(self.now_ns);
            Some(Duration::from_nanos(left).as_secs_f64())
        };
        json!({
            "cluster_id": self.config.cluster_id,
            "pid": std::process::id(),
            "uptime_s": self.epoch.elapsed().as_secs_f64(),
            "controller": controller_json(&counters, &resolved),
            "node": {"wakeups": self.wakeups, "peers": self.peers.len(), "waiting_connections": self.arrivals.to_json(), "segments": segments, "segment_bytes": segment_bytes,
                "own_segments": own_segments, "own_bytes": own_bytes, "own_warm_bytes": warm_bytes, "lane_bytes": self.lane.len_bytes(),
                "descriptors": open_descriptors(),
                "objects_out": outgoing, "objects_in": incoming},
            "links": links,
            "hosts": self.relays.links.iter().map(|(host, link)| json!({
                "host": host.0, "name": link.name, "draining": drains(*host), "ends_in_s": ends_in_s(*host),
                "mover": self.objects.transfers.mover_of(*host).map(|m| m.rank), "listen": link.listen, "round_trip_ns": link.round_trip_ns,
                "bytes_per_s": self.objects.transfers.bytes_per_s(*host),
                "fetched": {
                    "objects": link.fetched.objects, "wire_bytes": link.fetched.wire_bytes,
                    "mover_bytes": link.fetched.mover_bytes,
                    "resumptions": link.fetched.resumptions, "resumed_at_bytes": link.fetched.resumed_at_bytes,
                    "corrupt_chunks": link.fetched.corrupt_chunks, "last_ns": link.fetched.last_ns,
                },
            })).collect::<Vec<_>>(),
            "engines": counters.engines.iter().map(|e| json!({
                "engine": e.engine.0, "up": e.up, "state": e.state, "pid": e.pid, "outstanding": e.outstanding,
                "queued": e.queued, "completed": e.completed, "window": e.window, "mean_task_ns": e.mean_task_ns,
                "busy_ns": e.busy_ns, "restarts": e.restarts, "host": e.host, "holds_data": e.holds_data,
                "idle_s": e.idle_since.map(|since_ns| Duration::from_nanos(self.now_ns.saturating_sub(since_ns)).as_secs_f64()),
                "running": e.running.as_ref().map(|(name, since_ns)| json!({
                    "function": crate::reports::watch::text(name), "for_ns": self.now_ns.saturating_sub(*since_ns),
                })),
                "last_death": e.last_death.as_ref().map(|(certificate, at)| death_json(certificate, self.now_ns.saturating_sub(*at))),
            })).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// Number of descriptors of this process, except the one used for counting; 0 if the system does
/// not tell.
fn open_descriptors() -> usize {
    let listed = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    listed.saturating_sub(1)
}

/// A death certificate in the terms of `broadleaf.errors.DeathCertificate`.
fn death_json(certificate: &DeathCertificate, ago_ns: u64) -> Value {
    let (cause, code) = match certificate.cause {
        DeathCause::Exit(code) => ("exit", Some(code)),
        DeathCause::Signal(signal) => ("signal", Some(signal)),
        DeathCause::OutOfMemory => ("out_of_memory", None),
        DeathCause::Unresponsive => ("unresponsive", None),
        DeathCause::Stopped => ("stopped", None),
        DeathCause::Disconnected => ("disconnected", None),
        DeathCause::HostGone => ("host_gone", None),
        DeathCause::NotStarted => ("not_started", None),
        DeathCause::RankDied(rank) => ("rank_died", i32::try_from(rank).ok()),
    };
    json!({
        "cause": cause, "code": code, "uuid": certificate.uuid, "pid": certificate.pid, "host": certificate.host,
        "last_output": certificate.last_output, "ago_s": Duration::from_nanos(ago_ns).as_secs_f64(),
    })
}

fn controller_json(c: &Counters, resolved: &serde_json::Map<String, Value>) -> Value {
    json!({
        "submitted": c.submitted, "resolved": resolved, "discarded": c.discarded, "assigned": c.assigned,
        "retried": c.retried, "steals": c.steals, "revoked": c.revoked, "waiting": c.waiting, "ready": c.ready,
        "pinned": c.pinned, "offered": c.offered, "live": c.live, "clients": c.clients,
        "functions": c.functions, "function_bytes": c.function_bytes, "ignored": c.ignored,
        "kept_tasks": c.kept_tasks, "kept_bytes": c.kept_bytes,
    })
}

//! The configuration that a node gets when it starts.

use std::path::PathBuf;
use std::time::Duration;

use broadleaf_core::liveness::Limits;
use broadleaf_core::{Config, Nanos};
use broadleaf_net::proof::{ListenProof, ProofKey};
use broadleaf_net::tls::{KeyError, ServerTls};
use broadleaf_shm::WARM_SECONDS;
use serde::{Deserialize, Serialize};

use crate::journal::JournalConfig;

/// Heap that is touched before the first task: stored tasks, events and task numbers of about the
/// first ten thousand tasks then cause no page faults, and later ones cause one in about thirty
/// tasks.
pub const BOOKKEEPING_BYTES: usize = 2 * 1024 * 1024;

/// A relay that has heard nothing for this long dials again: the second ping is late. It looks when it has heard nothing for
/// a second. TCP alone would wait for as long again as the network was cut.
const REDIAL_AFTER_NS: Nanos = 900_000_000;

/// How long a peer may take to come back whose system does not know its connection any more: time to notice that, and for
/// two attempts of which the controller answers the first one late.
const RESET_NS: Nanos = 4_000_000_000;

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not JSON of this form.
    #[error("node configuration: {0}")]
    Json(#[from] serde_json::Error),
}

/// Where to listen for TCP.
#[derive(Clone, Debug, Deserialize)]
pub struct TcpConfig {
    /// Address to bind.
    pub host: String,
    /// Port to bind; 0 for any free one.
    #[serde(default)]
    pub port: u16,
    /// Whether connections are encrypted and authenticated.
    #[serde(default = "yes")]
    pub tls: bool,
}

fn yes() -> bool {
    true
}

/// What makes a node a relay.
#[derive(Clone, Debug, Deserialize)]
pub struct RelayConfig {
    /// Host and port of the controller.
    pub controller: (String, u16),
    /// Whether connections between hosts are encrypted and authenticated.
    #[serde(default = "yes")]
    pub tls: bool,
    /// This host's name, unique in the cluster.
    pub name: String,
    /// Address to listen on for other relays; `None` for the address that the controller is reached
    /// from.
    pub listen: Option<(String, u16)>,
    /// Whether other hosts cannot dial this one: its payload then goes through the controller's
    /// host.
    #[serde(default)]
    pub outbound_only: bool,
    /// Seconds until the batch job of this host ends; `None` if nothing ends it.
    #[serde(default)]
    pub ends_in_s: Option<f64>,
}

impl RelayConfig {
    /// Time until this host ends by itself.
    pub fn ends_in_ns(&self) -> Option<u64> {
        let left = Duration::try_from_secs_f64(self.ends_in_s?.max(0.0)).ok()?;
        u64::try_from(left.as_nanos()).ok()
    }
}

/// One pair of keys, base64.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct KeyPair {
    /// PKCS #8.
    #[serde(default)]
    pub private: String,
    /// Subject public key info.
    #[serde(default)]
    pub public: String,
}

/// The keys a node needs: its own pair, and those of its peers.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Keys {
    /// The node's own.
    #[serde(default)]
    pub server: KeyPair,
    /// Clients'.
    #[serde(default)]
    pub client: KeyPair,
    /// Engines'.
    #[serde(default)]
    pub engine: KeyPair,
}

/// Settings of the controller that a user may vary.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeOptions {
    /// See [`Config::prefetch_target_ns`].
    pub prefetch_target_us: u64,
    /// See [`Config::prefetch_min`].
    pub prefetch_min: u32,
    /// See [`Config::prefetch_max`].
    pub prefetch_max: u32,
    /// See [`Config::steal`].
    pub steal: bool,
    /// See [`Config::steal_after_ns`].
    pub steal_after_us: u64,
    /// See [`Config::wake_cost_ns`].
    pub wake_cost_us: u64,
    /// See [`Config::wake_after_ns`].
    pub wake_after_us: u64,
    /// See [`Config::max_outstanding_tasks`].
    pub max_outstanding_tasks: u64,
    /// See [`Config::max_outstanding_bytes`].
    pub max_outstanding_bytes: u64,
    /// See [`Config::history_tasks`].
    pub history_tasks: usize,
    /// See [`Config::function_cache_bytes`].
    pub function_cache_bytes: u64,
    /// See [`Config::kept_results_bytes`].
    pub kept_results_bytes: u64,
    /// See [`Config::restart_engines`].
    pub restart_engines: bool,
    /// See [`Config::max_restarts_per_minute`].
    pub max_restarts: u32,
    /// See [`Config::restart_backoff_max_ns`].
    pub restart_backoff_max_s: f64,
    /// See [`Config::interrupt_grace_ns`].
    pub interrupt_grace_s: f64,
    /// See [`Config::stop_grace_ns`].
    pub stop_grace_s: f64,
    /// See [`Config::start_timeout_ns`].
    pub start_timeout_s: f64,
    /// Maximum size of the node's own segments, including warm ones; `None` for a quarter of the
    /// available memory.
    pub pool_max_bytes: Option<u64>,
    /// How long the node's free segments are kept, in seconds.
    pub shared_memory_warm_s: u64,
    /// Topology of the tree by which large arguments reach several hosts.
    pub broadcast_topology: String,
    /// Branches of a k-ary tree; 0 for the number that takes the least time.
    pub tree_arity: u32,
    /// Maximum number of levels of a k-ary tree; 0 for no limit.
    pub tree_depth: u32,
    /// See [`Config::drain_ns`].
    pub drain_s: f64,
    /// How payload travels between hosts: `tcp` or `mpi`.
    pub payload: String,
    /// Who may read payload on its way: with `encrypted` nobody, with `fabric` everyone who can
    /// read what MPI sends.
    pub payload_trust: String,
    /// Size of an MPI message.
    pub mpi_message_bytes: u32,
    /// Bytes of payload that may wait in a socket.
    pub payload_socket_bytes: usize,
    /// Connections over which payload comes from one host; 0 to find the number on links with a long round trip.
    pub payload_streams: usize,
    /// Number of cores that the payload thread uses; 0 for the last core, as long as that suffices.
    pub payload_cores: usize,
    /// Niceness of the payload thread above its process's, 0 to 19.
    pub payload_niceness: u8,
    /// Silence after which a host (or, for a relay, its controller) is considered gone.
    pub host_timeout_s: f64,
    /// How long a host may be silent before it is lost, in seconds.
    pub rejoin_timeout_s: f64,
    /// What becomes of the tasks of a client on another host that does not come back in time: `cancel` or `finish`.
    pub lost_client: String,
    /// Whether the controller keeps a journal: `off`, `on`, or `sync`.
    pub journal: String,
    /// Number of outgoing bytes of a client above which none of its tasks is started.
    pub congestion_bytes: usize,
    /// Number of events in the ring.
    pub trace_events: usize,
    /// 0 off, 1 errors, 2 info, 3 debug.
    pub log_level: u8,
    /// `ring`, `stderr` or a file's path.
    pub log_sink: String,
    /// The file in which the node's inputs are recorded; empty for none.
    pub record_inputs: String,
    /// Maximum size of that file.
    pub record_inputs_bytes: u64,
}

impl Default for NodeOptions {
    fn default() -> Self {
        let core = Config::default();
        Self {
            prefetch_target_us: core.prefetch_target_ns / 1000,
            prefetch_min: core.prefetch_min,
            prefetch_max: core.prefetch_max,
            steal: core.steal,
            steal_after_us: core.steal_after_ns / 1000,
            wake_cost_us: core.wake_cost_ns / 1000,
            wake_after_us: core.wake_after_ns / 1000,
            max_outstanding_tasks: core.max_outstanding_tasks,
            max_outstanding_bytes: core.max_outstanding_bytes,
            history_tasks: core.history_tasks,
            function_cache_bytes: core.function_cache_bytes,
            kept_results_bytes: core.kept_results_bytes,
            restart_engines: core.restart_engines,
            max_restarts: core.max_restarts_per_minute,
            restart_backoff_max_s: core.restart_backoff_max_ns as f64 / 1e9,
            interrupt_grace_s: core.interrupt_grace_ns as f64 / 1e9,
            drain_s: core.drain_ns as f64 / 1e9,
            stop_grace_s: core.stop_grace_ns as f64 / 1e9,
            start_timeout_s: core.start_timeout_ns as f64 / 1e9,
            pool_max_bytes: None,
            shared_memory_warm_s: WARM_SECONDS,
            broadcast_topology: "auto".to_owned(),
            tree_arity: 0,
            tree_depth: 0,
            payload: "tcp".to_owned(),
            payload_trust: "encrypted".to_owned(),
            mpi_message_bytes: 256 * 1024,
            payload_socket_bytes: 256 * 1024,
            payload_streams: 0,
            payload_cores: 0,
            payload_niceness: 10,
            host_timeout_s: 10.0,
            rejoin_timeout_s: 60.0,
            lost_client: "cancel".to_owned(),
            journal: "off".to_owned(),
            congestion_bytes: 64 * 1024 * 1024,
            trace_events: 65_536,
            log_level: 2,
            log_sink: "ring".to_owned(),
            record_inputs: String::new(),
            record_inputs_bytes: 256 * 1024 * 1024,
        }
    }
}

impl NodeOptions {
    /// How long a host may be silent, for the controller.
    pub fn host_limits(&self) -> Limits {
        let silent_ns = to_ns(self.host_timeout_s);
        Limits {
            silent_ns,
            gone_ns: silent_ns.max(to_ns(self.rejoin_timeout_s)),
            reset_ns: silent_ns.min(RESET_NS),
        }
    }

    /// How long the controller may be silent, for a relay: it dials again before the controller misses it.
    pub fn controller_limits(&self) -> Limits {
        let limits = self.host_limits();
        Limits {
            silent_ns: limits.silent_ns.min(REDIAL_AFTER_NS),
            ..limits
        }
    }

    /// Every option and its value, as a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("invariant: plain fields serialise infallibly")
    }
}

/// Number of cores that this process and the engines of its host may use.
pub fn n_usable_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// A time in seconds as nanoseconds; 0 for a negative one.
#[expect(clippy::cast_sign_loss, reason = "a negative time is clamped to none")]
fn to_ns(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9) as u64
}

/// The configuration that a node gets when it starts.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeConfig {
    /// The cluster's name; peers must name it in their hello.
    pub cluster_id: String,
    /// Path of its socket.
    pub unix_path: PathBuf,
    /// `major.minor` of the cluster's Python.
    pub python: String,
    /// Descriptor to which one line of JSON is written when peers can connect.
    pub ready_fd: Option<i32>,
    /// Descriptor whose end of file means that the owner is gone.
    pub lifeline_fd: Option<i32>,
    /// Where to listen for TCP, if at all.
    pub tcp: Option<TcpConfig>,
    /// Where the controller keeps its journal, if it does.
    #[serde(default)]
    pub journal: Option<JournalConfig>,
    /// The cluster that this node joins as a relay, if it is one.
    pub relay: Option<RelayConfig>,
    /// Keys, for every connection.
    #[serde(default)]
    pub keys: Keys,
    /// Engines to start.
    #[serde(default)]
    pub n_engines: u32,
    /// Settings.
    #[serde(default)]
    pub options: NodeOptions,
}

impl NodeConfig {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`ConfigError`] if it is invalid.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Ok(serde_json::from_str(text)?)
    }

    /// What unix sockets, and TCP without encryption, accept as proof.
    ///
    /// # Errors
    /// [`KeyError`] when a key is malformed.
    pub fn listen_proof(&self) -> Result<ListenProof, KeyError> {
        let has_clients = self.relay.is_none();
        let client = || ProofKey::new(&self.keys.client.private, "clients' private");
        Ok(ListenProof {
            client: has_clients.then(client).transpose()?,
            engine: self.engine_proof()?,
        })
    }

    /// What proves that a peer has the engines' key.
    ///
    /// # Errors
    /// [`KeyError`] when the key is malformed.
    pub fn engine_proof(&self) -> Result<ProofKey, KeyError> {
        ProofKey::new(&self.keys.engine.private, "engines' private")
    }

    /// The controller's end of TLS.
    ///
    /// # Errors
    /// [`KeyError`] when a key is malformed.
    pub fn server_tls(&self) -> Result<ServerTls, KeyError> {
        let keys = &self.keys;
        let (client, engine) = (&keys.client.public, &keys.engine.public);
        ServerTls::new(&keys.server.private, client, engine)
    }

    /// The controller's part.
    pub fn core(&self) -> Config {
        let o = &self.options;
        Config {
            prefetch_target_ns: o.prefetch_target_us * 1000,
            prefetch_min: o.prefetch_min,
            prefetch_max: o.prefetch_max,
            steal: o.steal,
            steal_after_ns: o.steal_after_us * 1000,
            wake_cost_ns: o.wake_cost_us * 1000,
            wake_after_ns: o.wake_after_us * 1000,
            max_outstanding_tasks: o.max_outstanding_tasks,
            max_outstanding_bytes: o.max_outstanding_bytes,
            history_tasks: o.history_tasks,
            function_cache_bytes: o.function_cache_bytes,
            kept_results_bytes: o.kept_results_bytes,
            restart_engines: o.restart_engines,
            max_restarts_per_minute: o.max_restarts,
            restart_backoff_max_ns: to_ns(o.restart_backoff_max_s),
            interrupt_grace_ns: to_ns(o.interrupt_grace_s),
            drain_ns: to_ns(o.drain_s),
            stop_grace_ns: to_ns(o.stop_grace_s),
            start_timeout_ns: to_ns(o.start_timeout_s),
            n_engines: self.n_engines,
            journal: self.journal.is_some(),
            ..Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &str) -> NodeConfig {
        let text = format!(
            r#"{{"cluster_id": "c", "unix_path": "/run/s", "python": "3.11", "ready_fd": null,
                "lifeline_fd": null, "tcp": null, "options": {options}}}"#
        );
        NodeConfig::parse(&text).unwrap()
    }

    #[test]
    fn what_is_not_given_is_the_controllers_default() {
        assert_eq!(parsed("{}").core(), Config::default());
    }

    #[test]
    fn options_reach_the_controller() {
        let core = parsed(
            r#"{"stop_grace_s": 0.5, "start_timeout_s": -1, "history_tasks": 7, "function_cache_bytes": 8}"#,
        )
        .core();
        assert_eq!(core.stop_grace_ns, 500_000_000);
        assert_eq!(core.start_timeout_ns, 0);
        assert_eq!(core.history_tasks, 7);
        assert_eq!(core.function_cache_bytes, 8);
    }

    #[test]
    fn options_told_are_options_read() {
        let told = parsed(r#"{"stop_grace_s": 0.25}"#).options.to_json();
        assert_eq!(parsed(&told).options.to_json(), told);
        assert!(told.contains(r#""stop_grace_s":0.25"#));
    }
}

//! Finds the node through a connection file, and performs the handshake.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use broadleaf_net::proof::{DialProof, ProofKey};
use broadleaf_net::tls::{ClientTls, KeyError};
use broadleaf_net::{DialSecurity, Link, LinkError, Readiness, Route, local};
use broadleaf_proto::control::{self, Hello, Refusal, Role, Welcome};
use broadleaf_proto::proof::DialKey;
use broadleaf_proto::{FrameKind, PROTOCOL_VERSION, limits};
use broadleaf_shm::WARM_SECONDS;
use pyo3::exceptions::{PyConnectionError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::ConnectionRefused;
use crate::held_key::held_key;
use crate::payload::LargeBuffers;

/// A TCP address of a connection file.
#[derive(Clone, Debug, Deserialize)]
pub struct TcpAddress {
    host: String,
    port: u16,
    /// See [`Route::acknowledges_at_once`].
    #[serde(default)]
    acknowledges_at_once: bool,
    /// Whether something listens there that forwards bytes to the controller.
    #[serde(default)]
    is_forwarded: bool,
}

impl TcpAddress {
    /// The first socket address of the name.
    pub fn resolve(&self) -> io::Result<SocketAddr> {
        (self.host.as_str(), self.port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host name has no address"))
    }
}

/// Settings of clients and engines; `broadleaf config show` lists the defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct EndpointOptions {
    /// Maximum batching delay for submitted tasks.
    pub client_linger_us: u64,
    /// How long a thread that waits for a few tasks busy-polls before it blocks.
    pub client_spin_us: u64,
    /// Batch size above which submissions are written at once.
    pub client_flush_bytes: usize,
    /// Maximum batching delay for results while other tasks run.
    pub engine_flush_us: u64,
    /// Batch size above which results are written at once.
    pub engine_flush_bytes: usize,
    /// Buffers up to this size are sent inline.
    pub inline_buffer_bytes: usize,
    /// Whether larger ones travel in shared segments.
    pub shared_memory: bool,
    /// Limit on this process's segments; `None` for a quarter of the available memory.
    pub pool_max_bytes: Option<u64>,
    /// How long free segments are kept, in seconds.
    pub shared_memory_warm_s: u64,
    /// Send buffer of a connection for payload.
    pub payload_socket_bytes: usize,
    /// Connections over which payload comes from the controller's host; 0 to find the number on links with a long round
    /// trip.
    pub payload_streams: usize,
    /// How long a client tries to reach a controller on another host again, in seconds.
    pub rejoin_timeout_s: f64,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            client_linger_us: 100,
            client_spin_us: 200,
            client_flush_bytes: 32 * 1024,
            engine_flush_us: 200,
            engine_flush_bytes: 32 * 1024,
            inline_buffer_bytes: limits::INLINE_BUFFER_BYTES,
            shared_memory: true,
            pool_max_bytes: None,
            shared_memory_warm_s: WARM_SECONDS,
            payload_socket_bytes: 256 * 1024,
            payload_streams: 0,
            rejoin_timeout_s: 60.0,
        }
    }
}

/// The role whose key a connection file holds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeyOwner {
    #[default]
    Client,
    Engine,
}

/// A connection file's content.
#[derive(Clone, Debug, Deserialize)]
pub struct Connection {
    /// The cluster's name.
    pub cluster_id: String,
    /// The node's socket on this host.
    pub unix_path: Option<String>,
    /// The node's TCP address.
    pub tcp: Option<TcpAddress>,
    /// Whether the TCP connection is encrypted.
    #[serde(default)]
    pub tls: bool,
    /// `unix` or `tcp` to force one; `unix` where possible otherwise.
    pub transport: Option<String>,
    server_public_key: Option<String>,
    /// `client` or `engine`: whose key it holds.
    #[serde(default)]
    role: KeyOwner,
    private_key: Option<String>,
    /// Settings for this process.
    #[serde(default)]
    pub options: EndpointOptions,
}

impl Connection {
    /// Reads the file's text.
    pub fn parse(text: &str) -> PyResult<Self> {
        let mut connection: Self = serde_json::from_str(text)
            .map_err(|e| PyValueError::new_err(format!("connection file: {e}")))?;
        if connection.private_key.is_none() {
            connection.private_key = held_key(&connection.cluster_id);
        }
        Ok(connection)
    }

    /// The cluster's name and the private key, if there is one.
    pub fn into_key(self) -> Option<(String, String)> {
        self.private_key.map(|key| (self.cluster_id, key))
    }

    /// What this process says first.
    pub fn hello(&self, py: Python<'_>, role: Role) -> Hello {
        let version = py.version_info();
        Hello {
            protocol: PROTOCOL_VERSION,
            broadleaf: env!("CARGO_PKG_VERSION").to_owned(),
            python: format!("{}.{}", version.major, version.minor),
            cluster_id: self.cluster_id.clone(),
            role,
        }
    }

    /// The largest buffer that is sent inline, and how larger ones are sent.
    pub fn large_buffers(&self, is_local: bool) -> (usize, LargeBuffers) {
        if !is_local {
            (limits::FAR_INLINE_BYTES as usize, LargeBuffers::Upload)
        } else if self.options.shared_memory {
            (self.options.inline_buffer_bytes, LargeBuffers::Segment)
        } else {
            (usize::MAX, LargeBuffers::Inline)
        }
    }

    /// Keys for an encrypted connection.
    fn client_tls(&self) -> Result<ClientTls, ConnectError> {
        let (Some(own), Some(server)) = (&self.private_key, &self.server_public_key) else {
            return Err(ConnectError::NoKey);
        };
        Ok(ClientTls::new(own, server)?)
    }

    /// What proves the key if nothing is encrypted.
    fn proof(&self) -> Result<DialProof, ConnectError> {
        let private = self.private_key.as_ref().ok_or(ConnectError::NoKey)?;
        Ok(DialProof {
            kind: match self.role {
                KeyOwner::Client => DialKey::Client,
                KeyOwner::Engine => DialKey::Engine,
            },
            key: ProofKey::new(private, "private")?,
        })
    }
}

/// Why no connection was made.
#[derive(Debug)]
pub enum ConnectError {
    /// A system call failed.
    Io(io::Error),
    /// The link failed.
    Link(LinkError),
    /// The node refused.
    Refused(Refusal),
    /// The node did not answer in time.
    TimedOut,
    /// The connection file has no usable address.
    NoAddress,
    /// The connection file has no key where one is needed.
    NoKey,
    /// The keys cannot be used.
    Tls(String),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<LinkError> for ConnectError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Refused(refusal) => Self::Refused(refusal),
            error => Self::Link(error),
        }
    }
}

impl From<KeyError> for ConnectError {
    fn from(error: KeyError) -> Self {
        Self::Tls(error.to_string())
    }
}

impl ConnectError {
    /// Whether nobody listens at the address.
    pub fn is_nobody_there(&self) -> bool {
        let Self::Io(error) = self else { return false };
        let kind = error.kind();
        kind == io::ErrorKind::ConnectionRefused || kind == io::ErrorKind::NotFound
    }

    /// The exception for Python.
    pub fn into_py(self, _py: Python<'_>) -> PyErr {
        match self {
            Self::Io(error) => PyConnectionError::new_err(format!(
                "cannot reach the controller: {error}; is the cluster running? `broadleaf list` shows which are"
            )),
            Self::Link(LinkError::Impostor) => PyConnectionError::new_err(format!(
                "{}; remove the connection file if the cluster is gone",
                LinkError::Impostor
            )),
            Self::Link(error) => PyConnectionError::new_err(format!(
                "the controller closed the connection during the handshake: {error}; \
                 the keys in the connection file may belong to another cluster"
            )),
            Self::Refused(refusal) => {
                let kind = format!("{:?}", refusal.kind).to_lowercase();
                ConnectionRefused::new_err((kind, refusal.message))
            }
            Self::TimedOut => {
                PyTimeoutError::new_err("the controller did not answer the handshake in time")
            }
            Self::NoAddress => {
                PyValueError::new_err("the connection file has no address for this transport")
            }
            Self::NoKey => PyValueError::new_err(
                "the connection file has no key; use the one that the cluster wrote",
            ),
            Self::Tls(message) => PyValueError::new_err(format!(
                "the keys in the connection file cannot be used: {message}"
            )),
        }
    }
}

/// Says hello and waits for the welcome. `fds` are sent with the hello.
pub fn handshake(
    mut link: Link,
    hello: &Hello,
    fds: &[std::os::fd::BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(Link, Welcome, Vec<std::os::fd::OwnedFd>), ConnectError> {
    link.send(FrameKind::Hello, &control::encode(hello), fds)?;
    // The welcome lists every engine, so it may be longer than a handshake's first frame.
    link.set_frame_limit(limits::MAX_FRAME_BYTES);
    link.set_max_fds(limits::MAX_FRAME_FDS);
    loop {
        link.flush()?;
        if let Some(frame) = link.next_frame()? {
            return match frame.kind {
                FrameKind::Welcome => {
                    let welcome = control::decode(&frame.body).map_err(LinkError::from)?;
                    Ok((link, welcome, frame.fds.into_vec()))
                }
                FrameKind::Refused => Err(ConnectError::Refused(
                    control::decode(&frame.body).map_err(LinkError::from)?,
                )),
                kind => Err(
                    LinkError::from(broadleaf_proto::DecodeError::UnknownKind(kind as u8)).into(),
                ),
            };
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectError::TimedOut);
        }
        let for_write = link.wants_write();
        if let Readiness::Ready { readable: true, .. } =
            link.wait(for_write, Some(left.min(Duration::from_secs(1))))?
        {
            link.fill()?;
        }
    }
}

/// Dials the node's socket on this host.
pub fn dial_local(connection: &Connection) -> Result<Link, ConnectError> {
    let path = connection
        .unix_path
        .as_deref()
        .ok_or(ConnectError::NoAddress)?;
    let proof = connection.proof()?;
    let stream = local::dial(Path::new(path))?;
    Ok(Link::unix(stream)?.prove_as_dialer(&proof)?)
}

/// Dials the node for a client: its socket if it is on this host, else its TCP address.
pub fn dial(connection: &Connection, deadline: Instant) -> Result<Link, ConnectError> {
    if connection.unix_path.is_some() && connection.transport.as_deref() != Some("tcp") {
        return dial_local(connection);
    }
    let route = route(connection)?;
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&route.address, left)?;
    Ok(route.link(stream)?)
}

impl Connection {
    /// Whether the node is reached through something that forwards bytes to it.
    pub fn is_forwarded(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.is_forwarded)
    }
}

/// Where and how the node is dialled over TCP.
pub fn route(connection: &Connection) -> Result<Route, ConnectError> {
    let Some(address) = &connection.tcp else {
        return Err(ConnectError::NoAddress);
    };
    let security = if connection.tls {
        DialSecurity::Tls(connection.client_tls()?)
    } else {
        DialSecurity::Proof(connection.proof()?)
    };
    Ok(Route {
        address: address.resolve()?,
        security,
        acknowledges_at_once: address.acknowledges_at_once,
    })
}

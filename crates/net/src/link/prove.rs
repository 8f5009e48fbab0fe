//! The proof of keys as part of a link: it runs inside `fill` and `flush`, and other frames wait until it is done.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use broadleaf_proto::FrameKind;
use broadleaf_proto::control::{self, Refusal};

use crate::error::LinkError;
use crate::link::Link;
use crate::proof::{DialProof, ListenProof, Proving};
use crate::tls::{ClientTls, ServerTls, Session};

/// How TLS begins (RFC 8446, section 5.1): the type of a handshake record, and the version that the first one names for
/// compatibility. A frame whose length began so would exceed the limit before the proof.
const TLS_BEGIN: [u8; 3] = [22, 3, 1];

/// How the dialing end of a TCP connection proves who it is, and learns who is listening.
#[derive(Clone, Debug)]
pub enum DialSecurity {
    /// Everything is encrypted.
    Tls(ClientTls),
    /// The keys are proven, but nothing is encrypted.
    Proof(DialProof),
}

/// How a listener is reached over TCP.
#[derive(Clone, Debug)]
pub struct Route {
    /// Where it listens.
    pub address: SocketAddr,
    /// How both ends prove their keys.
    pub security: DialSecurity,
    /// Whether to acknowledge what arrives as soon as it is read. A peer that has left Nagle's algorithm on holds the
    /// end of what it sends back until then, and the kernel may take 40 ms to acknowledge by itself.
    pub acknowledges_at_once: bool,
}

impl Route {
    /// To a peer that sends small data at once.
    pub fn new(address: SocketAddr, security: DialSecurity) -> Self {
        Self {
            address,
            security,
            acknowledges_at_once: false,
        }
    }

    /// The dialing end of a connection to this listener.
    ///
    /// # Errors
    /// When a socket option cannot be set or TLS cannot start.
    pub fn link(&self, stream: TcpStream) -> io::Result<Link> {
        let mut link = self.security.link(stream)?;
        if self.acknowledges_at_once {
            link.socket.acknowledge_at_once();
        }
        Ok(link)
    }
}

impl DialSecurity {
    /// The dialing end of a connection.
    ///
    /// # Errors
    /// When a socket option cannot be set or TLS cannot start.
    pub fn link(&self, stream: TcpStream) -> io::Result<Link> {
        match self {
            Self::Tls(tls) => Link::tls_client(stream, tls),
            Self::Proof(proof) => Link::tcp(stream)?.prove_as_dialer(proof),
        }
    }
}

impl Link {
    /// Makes both ends prove their keys before any other frame is sent; this is the dialing end.
    ///
    /// The proof runs inside [`Link::flush`] and [`Link::fill`]; frames may be queued at once and are sent when it is
    /// done.
    ///
    /// # Errors
    /// If the operating system provides no randomness.
    pub fn prove_as_dialer(mut self, proof: &DialProof) -> io::Result<Self> {
        self.proving = Some(Box::new(Proving::dialer(proof)?));
        Ok(self)
    }

    /// The listening end; see [`Link::prove_as_dialer`].
    ///
    /// # Errors
    /// If the operating system provides no randomness.
    pub fn prove_as_listener(mut self, proof: &Arc<ListenProof>) -> io::Result<Self> {
        self.proving = Some(Box::new(Proving::listener(proof)?));
        Ok(self)
    }

    /// With `tls`, lets the dialing end begin with TLS instead; for the listening end of a unix socket. Then the peer is
    /// on another host, and something forwards its bytes: see [`Link::is_local`].
    #[must_use]
    pub fn or_tls(mut self, tls: Option<&ServerTls>) -> Self {
        if let Some(proving) = &mut self.proving {
            proving.tls = tls.cloned();
        }
        self
    }

    /// Whether the peer has begun with TLS, and may.
    pub(crate) fn begins_tls(&self) -> bool {
        let is_allowed = self.proving.as_ref().is_some_and(|p| p.tls.is_some());
        is_allowed && self.inbox.begins_with(&TLS_BEGIN)
    }

    /// Continues with TLS; what has arrived belongs to its handshake.
    pub(crate) fn take_up_tls(&mut self) -> Result<(), LinkError> {
        let Some(tls) = self.proving.as_ref().and_then(|p| p.tls.as_ref()) else {
            return Ok(());
        };
        let mut session = Session::server(tls)?;
        self.proving = None;
        let arrived = self.inbox.take_all();
        let mut rest = &arrived[..];
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            let room = session.room();
            let (piece, after) = rest.split_at(rest.len().min(room.len()));
            room[..piece.len()].copy_from_slice(piece);
            result = session.received(piece.len(), &mut self.inbox);
            rest = after;
        }
        self.tls = Some(Box::new(session));
        // The answer, or the alert that explains a failure, which is a courtesy: the first error is the one to report.
        let flushed = self.flush();
        result?;
        flushed.map(drop)
    }

    /// Handles the frames of the proof, and answers them.
    pub(crate) fn prove(&mut self) -> Result<(), LinkError> {
        while let Some(proving) = self.proving.as_mut().filter(|p| p.peer.is_none()) {
            let Some(frame) = self.inbox.next_proof_frame()? else {
                break;
            };
            let result = proving.on_frame(&frame);
            if proving.peer.is_some() {
                self.proven = proving.peer;
                if let Some(bytes) = proving.frame_limit_bytes {
                    self.inbox.set_frame_limit(bytes);
                }
                if let Some(count) = proving.max_fds {
                    self.inbox.set_max_fds(count);
                }
            }
            // An answer, data that waited for the end of the proof, or the reason for a failure. After a failure this
            // is a courtesy, so the first error is the one to report.
            let flushed = self.flush();
            result?;
            flushed?;
        }
        Ok(())
    }

    /// Sends frames of the proof; returns whether other frames may follow.
    pub(crate) fn flush_proof(&mut self) -> Result<bool, LinkError> {
        while let Some(proving) = &self.proving {
            let bytes = proving.outgoing();
            if bytes.is_empty() {
                break;
            }
            let piece_bytes = bytes.len();
            let sent = self.socket.send(bytes, &[]);
            let count = match self.count_sent(sent) {
                Ok(count) => count,
                Err(error) => return Err(self.last_word(error)),
            };
            if let Some(proving) = &mut self.proving {
                proving.sent(count);
            }
            if count < piece_bytes {
                return Ok(false);
            }
        }
        let is_over = self.proving.as_ref().is_none_or(|p| p.peer.is_some());
        if is_over {
            self.proving = None;
        }
        Ok(is_over)
    }

    /// Why the peer has closed the connection, if it said so before this side had said anything.
    fn last_word(&mut self, error: LinkError) -> LinkError {
        match self.fill() {
            Err(refused @ LinkError::Refused(_)) => refused,
            _ => error,
        }
    }

    /// Tells the peer why it is refused, if possible: before TLS is established it is not.
    ///
    /// # Errors
    /// If writing to the peer fails; it will be closed anyway.
    pub fn refuse(&mut self, refusal: &Refusal) -> Result<(), LinkError> {
        match &mut self.proving {
            Some(proving) => drop(proving.refuse(refusal.kind, refusal.message.clone())),
            None => self.send(FrameKind::Refused, &control::encode(refusal), &[])?,
        }
        self.flush().map(drop)
    }
}

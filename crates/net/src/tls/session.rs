//! One TLS connection between the socket's bytes and the link's frames, and the blocks that bypass it.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use broadleaf_proto::{Block, SealedHead};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error};

use super::incoming::Incoming;
use super::pinned::Pin;
use super::{ClientTls, PeerKey, ServerTls};
use crate::error::LinkError;
use crate::link::inbox::Inbox;

/// Amount of plaintext encrypted at once, so at most this much of a backlog is held twice.
const ENCRYPT_BYTES: usize = 64 * 1024;

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// The outcome of one step of the TLS state machine.
enum Step {
    /// There may be more to do.
    Again,
    /// Nothing to do until more arrives; this many bytes of plaintext were encrypted.
    Rest { encrypted: usize },
    /// The peer announced that it will send no more.
    PeerClosed,
}

pub(crate) struct Session {
    side: Side,
    peers: Arc<[Pin]>,
    incoming: Incoming,
    outgoing: Outgoing,
    established: bool,
    peer_closed: bool,
    /// The state machine refused something. It is not called again: after a refusal its view of `incoming` is no longer
    /// valid.
    failed: bool,
    peer: Option<PeerKey>,
}

/// Ciphertext for the socket: `bytes[sent..end]`. The rest of `bytes` is spare space that stays initialised.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    end: usize,
}

impl Outgoing {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.sent > 0 && self.sent >= self.end - self.sent {
            self.bytes.copy_within(self.sent..self.end, 0);
            self.end -= self.sent;
            self.sent = 0;
        }
        if self.bytes.len() < self.end + bytes {
            self.bytes.resize(self.end + bytes, 0);
        }
        &mut self.bytes[self.end..]
    }
}

impl Session {
    pub(crate) fn client(tls: &ClientTls) -> io::Result<Self> {
        // Never sent: the server is known by its key.
        let name = ServerName::try_from("broadleaf").map_err(io::Error::other)?;
        let connection = UnbufferedClientConnection::new(Arc::clone(&tls.config), name)
            .map_err(io::Error::other)?;
        let side = Side::Client(Box::new(connection));
        let mut session = Self::new(side, Arc::clone(&tls.peers));
        session
            .drive(&mut Inbox::new(), &[])
            .map_err(io::Error::other)?;
        Ok(session)
    }

    pub(crate) fn server(tls: &ServerTls) -> io::Result<Self> {
        let connection =
            UnbufferedServerConnection::new(Arc::clone(&tls.config)).map_err(io::Error::other)?;
        let side = Side::Server(Box::new(connection));
        Ok(Self::new(side, Arc::clone(&tls.peers)))
    }

    fn new(side: Side, peers: Arc<[Pin]>) -> Self {
        Self {
            side,
            peers,
            incoming: Incoming::new(),
            outgoing: Outgoing::default(),
            established: false,
            peer_closed: false,
            failed: false,
            peer: None,
        }
    }

    /// Whether the handshake is done and both keys are proven.
    pub(crate) fn is_established(&self) -> bool {
        self.established
    }

    pub(crate) fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    pub(crate) fn peer(&self) -> Option<PeerKey> {
        self.peer
    }

    pub(crate) fn set_block_limit(&mut self, bytes: u32) {
        self.incoming.set_block_limit(bytes as usize);
    }

    /// Space for ciphertext, never empty.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.incoming.room()
    }

    /// Decrypts after `count` bytes were received into [`Session::room`], up to the first block.
    pub(crate) fn received(&mut self, count: usize, inbox: &mut Inbox) -> Result<(), LinkError> {
        self.incoming.received(count);
        self.go_on(inbox)
    }

    fn go_on(&mut self, inbox: &mut Inbox) -> Result<(), LinkError> {
        self.drive(inbox, &[])?;
        if self.established {
            let begun = self.incoming.begin_block();
            self.failed |= begun.is_err();
            begun?;
        }
        Ok(())
    }

    /// The block in progress.
    pub(crate) fn block(&self) -> Option<Block> {
        self.incoming.block()
    }

    /// Moves the received part of the block in progress to `target`, and continues after its end; returns whether that
    /// was reached.
    pub(crate) fn take_block(
        &mut self,
        target: &mut [u8],
        inbox: &mut Inbox,
    ) -> Result<bool, LinkError> {
        let is_whole = self.incoming.move_block(target);
        if is_whole {
            self.incoming.end_block();
            self.go_on(inbox)?;
        }
        Ok(is_whole)
    }

    /// Where the rest of the block in progress belongs, if any of it is missing.
    pub(crate) fn block_room<'a>(
        &'a mut self,
        target: &'a mut [u8],
    ) -> Option<[IoSliceMut<'a>; 2]> {
        let is_whole = self.block().is_none() || self.incoming.move_block(target);
        (!is_whole).then(|| self.incoming.block_room(target))
    }

    /// Reports that `count` bytes were received into [`Session::block_room`].
    pub(crate) fn block_received(&mut self, count: usize) {
        self.incoming.block_received(count);
    }

    /// Queues a block of `len_bytes`. `write` fills in its ciphertext first, because only then its header is known.
    pub(crate) fn send_block<E>(
        &mut self,
        len_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<SealedHead, E>,
    ) -> Result<(), E> {
        let room = self.outgoing.room(Block::HEADER_BYTES + len_bytes);
        let (header, ciphertext) = room.split_at_mut(Block::HEADER_BYTES);
        let head = write(&mut ciphertext[..len_bytes])?;
        let len_bytes = len_bytes as u32;
        header.copy_from_slice(&Block { head, len_bytes }.encode_header());
        self.outgoing.end += Block::HEADER_BYTES + len_bytes as usize;
        Ok(())
    }

    /// Queues bytes that need no encryption.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.outgoing.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.outgoing.end += bytes.len();
    }

    /// Encrypts the front of `plain` if the handshake is done; returns how much it took.
    pub(crate) fn encrypt(&mut self, plain: &[u8], inbox: &mut Inbox) -> Result<usize, LinkError> {
        if !self.established {
            return Ok(0);
        }
        self.drive(inbox, &plain[..plain.len().min(ENCRYPT_BYTES)])
    }

    /// Ciphertext waiting for the socket.
    pub(crate) fn outgoing(&self) -> &[u8] {
        &self.outgoing.bytes[self.outgoing.sent..self.outgoing.end]
    }

    pub(crate) fn send_capacity_bytes(&self) -> usize {
        self.outgoing.bytes.capacity()
    }

    pub(crate) fn sent(&mut self, count: usize) {
        let out = &mut self.outgoing;
        out.sent += count;
        if out.sent == out.end {
            (out.sent, out.end) = (0, 0);
            out.bytes.truncate(2 * ENCRYPT_BYTES);
        }
    }

    fn drive(&mut self, inbox: &mut Inbox, plain: &[u8]) -> Result<usize, LinkError> {
        if self.failed {
            return Err(LinkError::Closed);
        }
        let result = loop {
            let records = self.incoming.records(self.established);
            let out = &mut self.outgoing;
            let (discard, step) = match &mut self.side {
                Side::Client(c) => advance(c.process_tls_records(records), inbox, out, plain),
                Side::Server(c) => advance(c.process_tls_records(records), inbox, out, plain),
            };
            self.incoming.discard(discard);
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Rest { encrypted }) => break Ok(encrypted),
                Ok(Step::PeerClosed) => {
                    self.peer_closed = true;
                    break Ok(0);
                }
                Err(error) => break Err(error),
            }
        };
        if result.is_err() {
            self.failed = true;
            self.queue_alert();
            return result;
        }
        if !self.established {
            self.note_established();
        }
        result
    }

    /// After a failure, the state machine may have an alert that tells the peer why.
    fn queue_alert(&mut self) {
        // It ignores received data only while it has something to send.
        if !self.common().wants_write() {
            return;
        }
        let (inbox, out) = (&mut Inbox::new(), &mut self.outgoing);
        let _ = match &mut self.side {
            Side::Client(c) => advance(c.process_tls_records(&mut []), inbox, out, &[]),
            Side::Server(c) => advance(c.process_tls_records(&mut []), inbox, out, &[]),
        };
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Client(c) => c,
            Side::Server(c) => c,
        }
    }

    fn note_established(&mut self) {
        let common = self.common();
        if common.is_handshaking() {
            return;
        }
        let key = common.peer_certificates().and_then(<[_]>::first);
        let pin = key.and_then(|key| self.peers.iter().find(|p| p.spki == key.as_ref()));
        self.peer = pin.map(|p| p.owner);
        self.established = self.peer.is_some();
    }
}

/// Does what the TLS state machine asks for; returns the ciphertext to drop and the next step.
fn advance<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    inbox: &mut Inbox,
    out: &mut Outgoing,
    plain: &[u8],
) -> (usize, Result<Step, LinkError>) {
    let mut discard = status.discard;
    let step = status.state.map_err(LinkError::from).and_then(|state| {
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    inbox.push(record.payload)?;
                }
            }
            ConnectionState::EncodeTlsData(mut data) => {
                let mut room_bytes = 1024;
                out.end += loop {
                    match data.encode(out.room(room_bytes)) {
                        Ok(count) => break count,
                        Err(EncodeError::InsufficientSize(e)) => room_bytes = e.required_size,
                        Err(error) => {
                            return Err(LinkError::Tls(Error::General(error.to_string())));
                        }
                    }
                };
            }
            // `outgoing` preserves the order, so encoded data counts as transmitted.
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::WriteTraffic(traffic) => {
                return encrypt(traffic, plain, out).map(|encrypted| Step::Rest { encrypted });
            }
            ConnectionState::BlockedHandshake => return Ok(Step::Rest { encrypted: 0 }),
            ConnectionState::PeerClosed | ConnectionState::Closed => return Ok(Step::PeerClosed),
            // 0-RTT is off, and additions of later versions were not requested.
            _ => return Err(LinkError::Tls(Error::HandshakeNotComplete)),
        }
        Ok(Step::Again)
    });
    (discard, step)
}

fn encrypt<Data>(
    mut traffic: WriteTraffic<'_, Data>,
    plain: &[u8],
    out: &mut Outgoing,
) -> Result<usize, LinkError> {
    if plain.is_empty() {
        return Ok(0);
    }
    // Header, content type and tag of each 16 KiB record, with some spare space for a key update.
    let mut room_bytes = plain.len() + (plain.len() / 16_384 + 1) * 32 + 64;
    out.end += loop {
        match traffic.encrypt(plain, out.room(room_bytes)) {
            Ok(count) => break count,
            Err(EncryptError::InsufficientSize(e)) => room_bytes = e.required_size,
            Err(EncryptError::EncryptExhausted) => return Err(LinkError::Tls(Error::EncryptError)),
        }
    };
    Ok(plain.len())
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("established", &self.established)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

//! One TLS connection between the socket's bytes and the link's frames, and the blocks that pass it by.

use std::io;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use broadleaf_proto::DecodeError;
use broadleaf_proto::frame::{BLOCK_HEADER_BYTES, BLOCK_MARK};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error};

use super::pinned::Pin;
use super::{ClientTls, PeerKey, ServerTls};
use crate::error::LinkError;
use crate::inbox::{Inbox, READ_BYTES};

/// Ciphertext buffer of a quiet link: a largest record and most of another.
const QUIET_BYTES: usize = 32 * 1024;
/// Plaintext encrypted at once, so at most this much of a backlog is held twice.
const ENCRYPT_BYTES: usize = 64 * 1024;

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What one step of the TLS machine came to.
enum Step {
    /// There may be more to do.
    Again,
    /// Nothing to do until more arrives; so many bytes of plaintext were encrypted.
    Rest { encrypted: usize },
    /// The peer said that it sends no more.
    PeerClosed,
}

pub(crate) struct Session {
    side: Side,
    peers: Arc<[Pin]>,
    /// Initialised; `incoming[start..received]` came from the socket and is still to be used.
    incoming: Vec<u8>,
    start: usize,
    received: usize,
    /// Longest body of a block that is accepted; 0 when none is.
    block_limit_bytes: usize,
    outgoing: Outgoing,
    established: bool,
    peer_closed: bool,
    /// The machine refused something. It is not asked again: after a refusal its idea of what is
    /// in `incoming` no longer holds.
    failed: bool,
    peer: Option<PeerKey>,
}

/// Ciphertext for the socket: `bytes[sent..end]`. The rest of `bytes` is room that stays initialised.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    end: usize,
}

/// A whole block, in the buffer it was received into.
#[derive(Debug)]
pub struct Block {
    buffer: Vec<u8>,
    body: Range<usize>,
    received: usize,
}

impl Block {
    /// What its sender sealed.
    pub fn body(&mut self) -> &mut [u8] {
        &mut self.buffer[self.body.clone()]
    }
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
            incoming: vec![0; QUIET_BYTES],
            start: 0,
            received: 0,
            block_limit_bytes: 0,
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
        self.block_limit_bytes = bytes as usize;
    }

    /// Room for ciphertext, never empty. While a block is under way it ends where the next one's length will be known,
    /// so that none but the first has to be moved.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.incoming.copy_within(self.start..self.received, 0);
            self.received -= self.start;
            self.start = 0;
        }
        let mut end = self.incoming.len();
        if let Some(body_bytes) = self.block_body_bytes() {
            end = body_bytes.min(self.block_limit_bytes) + 2 * BLOCK_HEADER_BYTES;
            // Of a block that was refused more may be here than it may have.
            end = end.max(self.received + 1);
            if self.incoming.len() < end {
                self.incoming.resize(end, 0);
            }
        }
        &mut self.incoming[self.received..end]
    }

    /// Decrypts after `count` bytes were received into [`Session::room`], up to the first block.
    pub(crate) fn received(&mut self, count: usize, inbox: &mut Inbox) -> Result<(), LinkError> {
        self.received += count;
        let saturated = self.received == self.incoming.len();
        let result = self.drive(inbox, &[]).and_then(|_| self.check_block());
        if saturated && self.incoming.len() < READ_BYTES {
            self.incoming.resize(self.incoming.len() * 2, 0);
        }
        result
    }

    fn is_at_block(&self) -> bool {
        self.block_limit_bytes > 0
            && self.established
            && self.incoming[self.start..self.received].first() == Some(&BLOCK_MARK)
    }

    /// Length of the block that comes next, as claimed, if its header is here.
    fn block_body_bytes(&self) -> Option<usize> {
        let header = self.incoming[self.start..self.received].first_chunk::<BLOCK_HEADER_BYTES>();
        let [_, length @ ..] = header.filter(|_| self.is_at_block())?;
        Some(u32::from_le_bytes(*length) as usize)
    }

    fn check_block(&mut self) -> Result<(), LinkError> {
        let limit = self.block_limit_bytes;
        match self.block_body_bytes().filter(|claimed| *claimed > limit) {
            None => Ok(()),
            Some(claimed) => {
                self.failed = true;
                Err(LinkError::Decode(DecodeError::TooLong {
                    claimed: claimed as u64,
                    limit: limit as u64,
                }))
            }
        }
    }

    /// The body of the block that comes next, if all of it is here.
    fn whole_block(&self) -> Option<Range<usize>> {
        let body = self.start + BLOCK_HEADER_BYTES;
        let end = body + self.block_body_bytes()?;
        (end <= self.received && !self.failed).then_some(body..end)
    }

    /// Whether a whole block waits.
    pub(crate) fn has_block(&self) -> bool {
        self.whole_block().is_some()
    }

    /// Takes the next whole block along with the buffer it is in. Nothing can be received until that is given back.
    pub(crate) fn take_block(&mut self) -> Option<Block> {
        let body = self.whole_block()?;
        let received = self.received;
        (self.start, self.received) = (0, 0);
        Some(Block {
            buffer: mem::take(&mut self.incoming),
            body,
            received,
        })
    }

    /// Goes on behind a block, up to the next one.
    pub(crate) fn return_block(
        &mut self,
        block: Block,
        inbox: &mut Inbox,
    ) -> Result<(), LinkError> {
        self.incoming = block.buffer;
        (self.start, self.received) = (block.body.end, block.received);
        if self.start < self.received && !self.is_at_block() {
            self.drive(inbox, &[])?;
        }
        self.check_block()
    }

    /// Queues a block, as written into its `body_bytes`.
    pub(crate) fn send_block<E>(
        &mut self,
        body_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let room = self.outgoing.room(BLOCK_HEADER_BYTES + body_bytes);
        room[0] = BLOCK_MARK;
        room[1..BLOCK_HEADER_BYTES].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        write(&mut room[BLOCK_HEADER_BYTES..][..body_bytes])?;
        self.outgoing.end += BLOCK_HEADER_BYTES + body_bytes;
        Ok(())
    }

    /// Unsays the block that was queued last, of which nothing was sent yet.
    pub(crate) fn take_back_block(&mut self, body_bytes: usize) {
        self.outgoing.end -= BLOCK_HEADER_BYTES + body_bytes;
    }

    /// Where the TLS records at the front end: at a block, or with what was received.
    fn records_end(&self) -> usize {
        if self.block_limit_bytes == 0 || !self.established {
            return self.received;
        }
        let mut at = self.start;
        while at < self.received && self.incoming[at] != BLOCK_MARK {
            // Type, version, and a length of two bytes (RFC 8446, section 5.1).
            let header = self.incoming[at..self.received].first_chunk::<5>();
            let Some([_, _, _, length @ ..]) = header else {
                return self.received;
            };
            at += 5 + usize::from(u16::from_be_bytes(*length));
        }
        at.min(self.received)
    }

    /// Encrypts the front of `plain` if the handshake is done; returns how much it took.
    pub(crate) fn encrypt(&mut self, plain: &[u8], inbox: &mut Inbox) -> Result<usize, LinkError> {
        if !self.established {
            return Ok(0);
        }
        self.drive(inbox, &plain[..plain.len().min(ENCRYPT_BYTES)])
    }

    /// Ciphertext that waits for the socket.
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
        let end = self.records_end();
        let result = loop {
            let records = &mut self.incoming[self.start..end];
            let out = &mut self.outgoing;
            let (discard, step) = match &mut self.side {
                Side::Client(c) => advance(c.process_tls_records(records), inbox, out, plain),
                Side::Server(c) => advance(c.process_tls_records(records), inbox, out, plain),
            };
            self.start += discard;
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

    /// After a failure, the machine may have an alert that tells the peer why.
    fn queue_alert(&mut self) {
        // Only while it has something to say does it not look at what was received.
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

/// Does what the TLS machine asks for; returns the ciphertext to drop and what comes next.
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
            // Order is kept by `outgoing`, so what was encoded counts as transmitted.
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::WriteTraffic(traffic) => {
                return encrypt(traffic, plain, out).map(|encrypted| Step::Rest { encrypted });
            }
            ConnectionState::BlockedHandshake => return Ok(Step::Rest { encrypted: 0 }),
            ConnectionState::PeerClosed | ConnectionState::Closed => return Ok(Step::PeerClosed),
            // 0-RTT is off, and whatever later versions add was not asked for.
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
    // Header, content type and tag of each record of 16 KiB, with some to spare for a key update.
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

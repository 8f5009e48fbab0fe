//! Proof of the cluster's key on a connection without TLS: HMAC-SHA256 over the nonces of both sides, in both
//! directions.
//!
//! The listener proves first, so that a dialer reveals nothing, and passes no descriptor, to an impostor in place of
//! the node. What follows is not encrypted: over TCP, someone between the two can still read and change it.

use std::sync::Arc;

use broadleaf_proto::control::{self, Refusal, RefusalKind};
use broadleaf_proto::proof::{
    Answer, Challenge, DialKey, NONCE_BYTES, Proof, Prover, refuse_version, transcript,
};
use broadleaf_proto::{FrameHeader, FrameKind, PROTOCOL_VERSION};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::LinkError;
use crate::link::inbox::Frame;
use crate::tls::{KeyError, PeerKey, ServerTls, decode_private};

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What proves possession of a key: a MAC key derived from the private half, which both sides have.
#[derive(Clone)]
pub struct ProofKey(hmac::Key);

impl ProofKey {
    /// Derives it from a private key in the text form of [`crate::tls::KeyPair`].
    ///
    /// # Errors
    /// [`KeyError`] if the key is malformed; `whose` says which one it is.
    pub fn new(private: &str, whose: &'static str) -> Result<Self, KeyError> {
        let (der, _) = decode_private(private, whose)?;
        let secret = Salt::new(HKDF_SHA256, b"broadleaf").extract(der.secret_pkcs8_der());
        let info: [&[u8]; 1] = [b"proof of key without TLS"];
        let key = secret
            .expand(&info, hmac::HMAC_SHA256)
            .map_err(|_| KeyError::Malformed(whose))?;
        Ok(Self(key.into()))
    }

    fn prove(&self, covered: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&self.0, covered);
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Takes the same time wherever the values differ.
    fn accepts(&self, covered: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.0, covered, proof).is_ok()
    }
}

impl std::fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProofKey")
    }
}

/// What a dialer proves.
#[derive(Clone, Debug)]
pub struct DialProof {
    /// Whose key it is.
    pub kind: DialKey,
    /// The key.
    pub key: ProofKey,
}

/// What a listener accepts.
#[derive(Clone, Debug)]
pub struct ListenProof {
    /// The clients' key, if clients may connect.
    pub client: Option<ProofKey>,
    /// The engines' key.
    pub engine: ProofKey,
}

/// One side's part in the proof, until both have proven.
#[derive(Debug)]
pub(crate) struct Proving {
    side: Side,
    nonce: [u8; NONCE_BYTES],
    /// Frames of the proof for the socket; they are sent before any other.
    outgoing: Vec<u8>,
    sent: usize,
    /// What the peer proved to be.
    pub(crate) peer: Option<PeerKey>,
    /// Limits that hold once the peer has proven its key.
    pub(crate) frame_limit_bytes: Option<u32>,
    pub(crate) max_fds: Option<u16>,
    /// What the peer may begin with instead.
    pub(crate) tls: Option<ServerTls>,
}

#[derive(Debug)]
enum Side {
    Dialer(DialProof),
    /// With the challenge, once it came.
    Listener(Arc<ListenProof>, Option<Challenge>),
}

impl Proving {
    pub(crate) fn dialer(proof: &DialProof) -> std::io::Result<Self> {
        let mut proving = Self::new(Side::Dialer(proof.clone()))?;
        let challenge = Challenge {
            protocol: PROTOCOL_VERSION,
            broadleaf: OWN_VERSION.to_owned(),
            key: proof.kind,
            nonce: proving.nonce,
        };
        proving.queue(FrameKind::Challenge, &control::encode(&challenge));
        Ok(proving)
    }

    pub(crate) fn listener(proof: &Arc<ListenProof>) -> std::io::Result<Self> {
        Self::new(Side::Listener(Arc::clone(proof), None))
    }

    fn new(side: Side) -> std::io::Result<Self> {
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(|_| std::io::Error::other("the operating system provided no randomness"))?;
        Ok(Self {
            side,
            nonce,
            outgoing: Vec::new(),
            sent: 0,
            peer: None,
            frame_limit_bytes: None,
            max_fds: None,
            tls: None,
        })
    }

    fn queue(&mut self, kind: FrameKind, body: &[u8]) {
        let header = FrameHeader {
            body_bytes: body.len() as u32,
            kind,
            fd_count: 0,
        };
        self.outgoing.extend_from_slice(&header.encode());
        self.outgoing.extend_from_slice(body);
    }

    /// Tells the peer why it is refused; returns the same as an error.
    pub(crate) fn refuse(&mut self, kind: RefusalKind, message: String) -> LinkError {
        let refusal = Refusal { kind, message };
        self.queue(FrameKind::Refused, &control::encode(&refusal));
        LinkError::Refused(refusal)
    }

    pub(crate) fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// Whether there is something to send: from the proof, or, once it is over, from the `queued_bytes` behind it.
    pub(crate) fn wants_write(&self, queued_bytes: usize) -> bool {
        !self.outgoing().is_empty() || self.peer.is_some() && queued_bytes > 0
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count;
    }

    /// Handles a frame from the peer; [`Proving::peer`] says when it was the last.
    pub(crate) fn on_frame(&mut self, frame: &Frame) -> Result<(), LinkError> {
        match &self.side {
            Side::Dialer(proof) => {
                let proof = proof.clone();
                self.on_answer(&proof, frame)
            }
            Side::Listener(proof, None) => {
                let proof = Arc::clone(proof);
                self.on_challenge(proof, frame)
            }
            Side::Listener(proof, Some(challenge)) => {
                self.peer = checked(proof, challenge, &self.nonce, frame);
                if self.peer.is_none() {
                    let message =
                        "you do not hold the cluster's key; is the connection file out of date?";
                    return Err(self.refuse(RefusalKind::Identity, message.to_owned()));
                }
                Ok(())
            }
        }
    }

    fn on_answer(&mut self, proof: &DialProof, frame: &Frame) -> Result<(), LinkError> {
        if frame.kind == FrameKind::Refused {
            return Err(LinkError::Refused(control::decode(&frame.body)?));
        }
        if frame.kind != FrameKind::Answer {
            return Err(LinkError::Impostor);
        }
        let answer: Answer = control::decode(&frame.body)?;
        let covered = |prover| transcript(prover, proof.kind, &self.nonce, &answer.nonce);
        if !proof.key.accepts(&covered(Prover::Listener), &answer.proof) {
            return Err(LinkError::Impostor);
        }
        let proof = proof.key.prove(&covered(Prover::Dialer));
        self.queue(FrameKind::Proof, &control::encode(&Proof { proof }));
        self.peer = Some(PeerKey::Server);
        Ok(())
    }

    fn on_challenge(&mut self, proof: Arc<ListenProof>, frame: &Frame) -> Result<(), LinkError> {
        let challenge = (frame.kind == FrameKind::Challenge)
            .then(|| control::decode::<Challenge>(&frame.body).ok())
            .flatten();
        let Some(challenge) = challenge else {
            // How another version begins is not known here.
            let message = format!(
                "the cluster runs Broadleaf {OWN_VERSION} (protocol {PROTOCOL_VERSION}), and your first message has another version, or is encrypted; install the same version on both sides"
            );
            return Err(self.refuse(RefusalKind::Version, message));
        };
        let refusal = refuse_version(challenge.protocol, &challenge.broadleaf, OWN_VERSION);
        if let Some(refusal) = refusal {
            return Err(self.refuse(refusal.kind, refusal.message));
        }
        let Some(key) = proof.key(challenge.key) else {
            let message = "this is a relay; connect to the controller".to_owned();
            return Err(self.refuse(RefusalKind::Identity, message));
        };
        let covered = transcript(
            Prover::Listener,
            challenge.key,
            &challenge.nonce,
            &self.nonce,
        );
        let answer = Answer {
            nonce: self.nonce,
            proof: key.prove(&covered),
        };
        self.queue(FrameKind::Answer, &control::encode(&answer));
        self.tls = None;
        self.side = Side::Listener(proof, Some(challenge));
        Ok(())
    }
}

impl ListenProof {
    fn key(&self, kind: DialKey) -> Option<&ProofKey> {
        match kind {
            DialKey::Client => self.client.as_ref(),
            DialKey::Engine => Some(&self.engine),
        }
    }
}

/// Whose key the dialer has proven with this frame.
fn checked(
    proof: &ListenProof,
    challenge: &Challenge,
    nonce: &[u8; NONCE_BYTES],
    frame: &Frame,
) -> Option<PeerKey> {
    let given: Proof = (frame.kind == FrameKind::Proof)
        .then(|| control::decode(&frame.body).ok())
        .flatten()?;
    let covered = transcript(Prover::Dialer, challenge.key, &challenge.nonce, nonce);
    let key = proof.key(challenge.key)?;
    key.accepts(&covered, &given.proof)
        .then_some(match challenge.key {
            DialKey::Client => PeerKey::Client,
            DialKey::Engine => PeerKey::Engine,
        })
}

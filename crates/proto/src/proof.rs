//! How two peers without TLS prove to each other that they hold the cluster's key, before either
//! sends anything else.
//!
//! ```text
//! dialer                                     listener
//!   Challenge { versions, whose key, nonce } ->
//!                     <- Answer { nonce, proof }
//!   Proof { proof }, and then Hello ->
//! ```
//!
//! A proof is a MAC over [`transcript`], which names the side that made it, so neither proof can be
//! sent back as the other.

use serde::{Deserialize, Serialize};

use crate::PROTOCOL_VERSION;
use crate::messages::control::{Refusal, RefusalKind};

/// Bytes of a nonce: random, and used once.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Which of the cluster's keys the dialer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DialKey {
    /// The clients'.
    Client,
    /// The engines'.
    Engine,
}

/// First frame of a connection without TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// [`PROTOCOL_VERSION`] of the dialer.
    pub protocol: u32,
    /// Its version of Broadleaf.
    pub broadleaf: String,
    /// The key that both sides must prove.
    pub key: DialKey,
    /// What the listener's proof must cover.
    pub nonce: [u8; NONCE_BYTES],
}

/// The listener proves the key, and asks for the dialer's proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What the dialer's proof must cover.
    pub nonce: [u8; NONCE_BYTES],
    /// The listener's MAC.
    pub proof: [u8; PROOF_BYTES],
}

/// The dialer proves the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The dialer's MAC.
    pub proof: [u8; PROOF_BYTES],
}

/// The side that makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// Who connected.
    Dialer,
    /// The side that was dialled.
    Listener,
}

/// What a proof covers: who made it, the protocol, the key, and the nonces of both sides. Every
/// field has a fixed length.
pub fn transcript(
    prover: Prover,
    key: DialKey,
    dialer_nonce: &[u8; NONCE_BYTES],
    listener_nonce: &[u8; NONCE_BYTES],
) -> Vec<u8> {
    let prover = match prover {
        Prover::Dialer => 1,
        Prover::Listener => 2,
    };
    let key = match key {
        DialKey::Client => 1,
        DialKey::Engine => 2,
    };
    let mut covered = b"broadleaf proof of key ".to_vec();
    covered.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    covered.extend_from_slice(&[prover, key]);
    covered.extend_from_slice(dialer_nonce);
    covered.extend_from_slice(listener_nonce);
    covered
}

/// The refusal of a peer with another version, or `None` if both versions are the same.
pub fn refuse_version(protocol: u32, broadleaf: &str, own_broadleaf: &str) -> Option<Refusal> {
    let is_same = protocol == PROTOCOL_VERSION && broadleaf == own_broadleaf;
    (!is_same).then(|| Refusal {
        kind: RefusalKind::Version,
        message: format!(
            "the cluster runs Broadleaf {own_broadleaf} (protocol {PROTOCOL_VERSION}), you run {broadleaf} \
             (protocol {protocol}); install the same version on both sides"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_changes_what_is_covered() {
        let (a, b) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
        let base = transcript(Prover::Dialer, DialKey::Client, &a, &b);
        for other in [
            transcript(Prover::Listener, DialKey::Client, &a, &b),
            transcript(Prover::Dialer, DialKey::Engine, &a, &b),
            transcript(Prover::Dialer, DialKey::Client, &b, &b),
            transcript(Prover::Dialer, DialKey::Client, &a, &a),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        assert_eq!(refuse_version(PROTOCOL_VERSION, "1.0", "1.0"), None);
        let refusal = refuse_version(PROTOCOL_VERSION - 1, "1.0", "1.0");
        assert!(refusal.is_some_and(|r| r.message.contains("the same version on both sides")));
        assert!(refuse_version(PROTOCOL_VERSION, "0.9", "1.0").is_some());
    }
}

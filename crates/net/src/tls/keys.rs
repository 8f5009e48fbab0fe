//! Ed25519 key pairs in the text form of the connection file.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::KeyError;

/// The DER prefix of the 32 bytes of every Ed25519 public key (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const SPKI_BYTES: usize = SPKI_PREFIX.len() + 32;

/// A key and its public half.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// Base64 of the PKCS #8 document. Secret.
    pub private: String,
    /// Base64 of the `SubjectPublicKeyInfo`.
    pub public: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKeys {
    /// The controller's own.
    pub server: KeyPair,
    /// For everyone who may submit work.
    pub client: KeyPair,
    /// For engines.
    pub engine: KeyPair,
}

/// Generates keys for a cluster.
///
/// # Errors
/// [`KeyError::NoRandomness`].
pub fn generate() -> Result<ClusterKeys, KeyError> {
    Ok(ClusterKeys {
        server: generate_pair()?,
        client: generate_pair()?,
        engine: generate_pair()?,
    })
}

fn generate_pair() -> Result<KeyPair, KeyError> {
    let document =
        Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::NoRandomness)?;
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref())
        .map_err(|_| KeyError::Malformed("generated"))?;
    Ok(KeyPair {
        private: STANDARD.encode(document.as_ref()),
        public: STANDARD.encode(spki(&pair)),
    })
}

fn spki(pair: &Ed25519KeyPair) -> Vec<u8> {
    [&SPKI_PREFIX, pair.public_key().as_ref()].concat()
}

/// A private key in the form that TLS expects, and its public half.
pub(crate) fn decode_private(
    text: &str,
    whose: &'static str,
) -> Result<(PrivatePkcs8KeyDer<'static>, Vec<u8>), KeyError> {
    let der = STANDARD
        .decode(text)
        .map_err(|_| KeyError::Malformed(whose))?;
    let pair = Ed25519KeyPair::from_pkcs8(&der).map_err(|_| KeyError::Malformed(whose))?;
    Ok((PrivatePkcs8KeyDer::from(der), spki(&pair)))
}

/// A public key as it appears on the wire.
pub(super) fn decode_public(text: &str, whose: &'static str) -> Result<Vec<u8>, KeyError> {
    let der = STANDARD
        .decode(text)
        .map_err(|_| KeyError::Malformed(whose))?;
    if der.len() != SPKI_BYTES || !der.starts_with(&SPKI_PREFIX) {
        return Err(KeyError::Malformed(whose));
    }
    Ok(der)
}

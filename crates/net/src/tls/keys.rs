//! Ed25519 key pairs in the text form of the connection file.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::KeyError;

/// The DER prefix of the 32 bytes of every Ed25519 public key (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const SPKI_BYTES: usize = SPKI_PREFIX.len() + 32;

/// What stands before the seed, and between it and the public key, in every Ed25519 private key of PKCS #8, version 2
/// (RFC 5958 and RFC 8410).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x51, 0x02, 0x01, 0x01, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
const PKCS8_MIDDLE: [u8; 3] = [0x81, 0x21, 0x00];
const SEED_BYTES: usize = 32;

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
    let pair = || {
        let mut seed = [0; SEED_BYTES];
        SystemRandom::new()
            .fill(&mut seed)
            .map_err(|_| KeyError::NoRandomness)?;
        pair_of(&seed)
    };
    Ok(ClusterKeys {
        server: pair()?,
        client: pair()?,
        engine: pair()?,
    })
}

/// Derives the keys of the cluster `context` from a secret, by HKDF-SHA256 (RFC 5869).
///
/// They are the same wherever both are. The keys are as hard to guess as the secret.
///
/// # Errors
/// [`KeyError`], if the cryptographic library refuses.
pub fn derive(secret: &[u8], context: &str) -> Result<ClusterKeys, KeyError> {
    let secret = Salt::new(HKDF_SHA256, b"broadleaf keys").extract(secret);
    let pair = |role: &'static str| {
        let mut seed = [0; SEED_BYTES];
        secret
            .expand(&[role.as_bytes(), b" ", context.as_bytes()], HKDF_SHA256)
            .and_then(|derived| derived.fill(&mut seed))
            .map_err(|_| KeyError::Malformed(role))?;
        pair_of(&seed)
    };
    Ok(ClusterKeys {
        server: pair("server")?,
        client: pair("client")?,
        engine: pair("engine")?,
    })
}

fn pair_of(seed: &[u8; SEED_BYTES]) -> Result<KeyPair, KeyError> {
    let pair =
        Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| KeyError::Malformed("generated"))?;
    let public = pair.public_key().as_ref();
    let document = [&PKCS8_PREFIX[..], seed, &PKCS8_MIDDLE, public].concat();
    Ok(KeyPair {
        private: STANDARD.encode(document),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_those_that_the_library_writes() {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let seed = document.as_ref()[PKCS8_PREFIX.len()..][..SEED_BYTES]
            .try_into()
            .unwrap();
        assert_eq!(
            pair_of(&seed).unwrap().private,
            STANDARD.encode(document.as_ref())
        );
    }

    #[test]
    fn derived_keys_depend_on_secret_context_and_role() {
        let keys = derive(b"a secret", "run-12-0").unwrap();
        assert_eq!(keys, derive(b"a secret", "run-12-0").unwrap());
        let others = [
            derive(b"a secret", "run-12-1").unwrap(),
            derive(b"another secret", "run-12-0").unwrap(),
        ];
        let mut public: Vec<_> = [keys]
            .iter()
            .chain(&others)
            .flat_map(|k| [&k.server, &k.client, &k.engine].map(|pair| pair.public.clone()))
            .collect();
        public.sort();
        public.dedup();
        assert_eq!(public.len(), 9);
    }

    #[test]
    fn derived_keys_are_decoded() {
        let keys = derive(b"a secret", "run-12-0").unwrap();
        let (_, public) = decode_private(&keys.engine.private, "engine").unwrap();
        assert_eq!(
            public,
            decode_public(&keys.engine.public, "engine").unwrap()
        );
    }
}

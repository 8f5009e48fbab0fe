//! Payload that is sealed once and forwarded unchanged: AES-128-GCM (NIST SP 800-38D) with a key of its own for each
//! object, derived (HKDF-SHA-256, RFC 5869) from a secret that the nodes of a cluster share.

use broadleaf_proto::{ObjectId, PayloadSecret, SealedHead};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

/// Why bytes could not be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The operating system provided no randomness.
    #[error("cannot seal payload: the operating system provided no randomness")]
    NoRandomness,
    /// The bytes or their position differ from what was sealed, or another key was used.
    #[error("payload differs from what was sealed")]
    Corrupt,
}

/// Makes the secret of a cluster.
///
/// # Errors
/// [`SealError::NoRandomness`].
pub fn generate_secret() -> Result<PayloadSecret, SealError> {
    let mut secret = [0; 32];
    fill_with_random(&mut secret)?;
    Ok(PayloadSecret(secret))
}

/// Random bytes from the system.
pub(crate) fn fill_with_random(bytes: &mut [u8]) -> Result<(), SealError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|Unspecified| SealError::NoRandomness)
}

/// The key of one object at one node.
///
/// A nonce is a random prefix, drawn here for this object, and a counter: any number of nodes may seal pieces of one
/// object without knowing about each other. Two of a thousand draw the same prefix with a probability of 3e-14.
#[derive(Debug)]
pub struct ObjectKey {
    key: LessSafeKey,
    prefix: [u8; 8],
    sealed: u32,
}

impl ObjectKey {
    /// Derives an object's key.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`].
    ///
    /// # Panics
    /// Never: HKDF provides keys of this length.
    pub fn new(secret: &PayloadSecret, object: ObjectId) -> Result<Self, SealError> {
        let root = Salt::new(HKDF_SHA256, b"broadleaf payload").extract(&secret.0);
        let info = object.0.to_le_bytes();
        let key = root
            .expand(&[&info], &AES_128_GCM)
            .map(UnboundKey::from)
            .expect("invariant: HKDF-SHA-256 gives up to 255 times 32 bytes");
        let mut prefix = [0; 8];
        fill_with_random(&mut prefix)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            prefix,
            sealed: 0,
        })
    }

    /// Encrypts `bytes` in place, and writes nonce and tag into their header.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`], at most once in 2^32 pieces, when a new prefix is due.
    ///
    /// # Panics
    /// When `bytes` is above 64 GiB, which no piece may be.
    pub fn seal(&mut self, head: &mut SealedHead, bytes: &mut [u8]) -> Result<(), SealError> {
        if self.sealed == u32::MAX {
            fill_with_random(&mut self.prefix)?;
        }
        self.sealed = self.sealed.wrapping_add(1);
        let (prefix, count) = head.nonce.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(&self.prefix);
        count.copy_from_slice(&self.sealed.to_le_bytes());
        let (nonce, aad) = (nonce(head), Aad::from(head.position()));
        let tag = self.key.seal_in_place_separate_tag(nonce, aad, bytes);
        let tag =
            tag.expect("invariant: a piece is shorter than the 64 GiB that a nonce is good for");
        head.tag.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts `bytes` in place. After a failure they are useless.
    ///
    /// # Errors
    /// [`SealError::Corrupt`].
    pub fn open(&self, head: &SealedHead, bytes: &mut [u8]) -> Result<(), SealError> {
        let (tag, aad) = (Tag::from(head.tag), Aad::from(head.position()));
        let opened = self
            .key
            .open_in_place_separate_tag(nonce(head), aad, tag, bytes, 0..);
        opened.map(drop).map_err(|Unspecified| SealError::Corrupt)
    }
}

fn nonce(head: &SealedHead) -> Nonce {
    const { assert!(NONCE_LEN == 12) };
    Nonce::assume_unique_for_key(head.nonce)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const OBJECT: ObjectId = ObjectId(9);

    fn head(offset_bytes: u64) -> SealedHead {
        SealedHead {
            object: OBJECT,
            offset_bytes,
            pull: 0,
            nonce: [0; 12],
            tag: [0; 16],
        }
    }

    #[test]
    fn what_one_node_seals_another_opens() {
        let secret = generate_secret().unwrap();
        let mut key = ObjectKey::new(&secret, OBJECT).unwrap();
        let (mut head, mut bytes) = (head(4096), vec![7; 1000]);
        key.seal(&mut head, &mut bytes).unwrap();
        assert!(bytes != [7; 1000]);
        // Another hop's pull.
        head.pull = 5;
        let other = ObjectKey::new(&secret, OBJECT).unwrap();
        other.open(&head, &mut bytes).unwrap();
        assert!(bytes == [7; 1000]);
    }

    #[test]
    fn nothing_else_is_opened() {
        let secret = generate_secret().unwrap();
        let mut key = ObjectKey::new(&secret, OBJECT).unwrap();
        let (mut head, mut bytes) = (head(4096), vec![7; 1000]);
        key.seal(&mut head, &mut bytes).unwrap();
        let refused = |key: &ObjectKey, head: &SealedHead, bytes: &[u8]| {
            let opened = key.open(head, &mut bytes.to_vec());
            assert_eq!(opened, Err(SealError::Corrupt));
        };
        for i in [0, 500, 999] {
            let mut spoilt = bytes.clone();
            spoilt[i] ^= 1;
            refused(&key, &head, &spoilt);
        }
        refused(&key, &head, &bytes[..999]);
        let of = |spoil: fn(&mut SealedHead)| {
            let mut spoilt = head;
            spoil(&mut spoilt);
            spoilt
        };
        refused(&key, &of(|h| h.offset_bytes = 0), &bytes);
        refused(&key, &of(|h| h.object = ObjectId(8)), &bytes);
        refused(&key, &of(|h| h.nonce[11] ^= 1), &bytes);
        refused(&key, &of(|h| h.tag[0] ^= 1), &bytes);
        let of_another_object = ObjectKey::new(&secret, ObjectId(8)).unwrap();
        refused(&of_another_object, &head, &bytes);
        let of_another_cluster = ObjectKey::new(&generate_secret().unwrap(), OBJECT).unwrap();
        refused(&of_another_cluster, &head, &bytes);
        key.open(&head, &mut bytes).unwrap();
    }

    #[test]
    fn no_nonce_comes_twice() {
        let secret = generate_secret().unwrap();
        let mut keys = [(); 3].map(|()| ObjectKey::new(&secret, OBJECT).unwrap());
        keys[1].sealed = u32::MAX - 5;
        let mut seen = BTreeSet::new();
        for _ in 0..10 {
            for key in &mut keys {
                let mut head = head(0);
                key.seal(&mut head, &mut [0; 16]).unwrap();
                assert!(seen.insert(head.nonce));
            }
        }
    }
}

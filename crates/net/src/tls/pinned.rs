//! What each side presents and what it accepts.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerMisbehaved, ServerConfig, SignatureScheme, crypto, version,
};

use super::keys::{decode_private, decode_public};
use super::{KeyError, PeerKey};

/// The dialing side of TLS: a client or a relay.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(super) config: Arc<ClientConfig>,
    pub(super) peers: Arc<[Pin]>,
}

/// The listening side of TLS: the controller, or a relay for other relays.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ServerConfig>,
    pub(super) peers: Arc<[Pin]>,
}

/// An accepted public key, and its owner.
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) spki: Vec<u8>,
    pub(super) owner: PeerKey,
}

impl ServerTls {
    /// Presents `server_private`; accepts exactly the clients' and the engines' key. All in the
    /// text form of [`super::KeyPair`].
    ///
    /// # Errors
    /// [`KeyError`] when a key is malformed, or both public keys are the same.
    pub fn new(
        server_private: &str,
        client_public: &str,
        engine_public: &str,
    ) -> Result<Self, KeyError> {
        let client = decode_public(client_public, "client's public")?;
        let engine = decode_public(engine_public, "engine's public")?;
        if client == engine {
            return Err(KeyError::NotDistinct);
        }
        let peers: Arc<[Pin]> = Arc::new([
            Pin {
                spki: client,
                owner: PeerKey::Client,
            },
            Pin {
                spki: engine,
                owner: PeerKey::Engine,
            },
        ]);
        let (private, spki) = decode_private(server_private, "server's private")?;
        Self::accepting(&private, spki, peers)
    }

    fn accepting(
        private: &PrivatePkcs8KeyDer<'_>,
        spki: Vec<u8>,
        peers: Arc<[Pin]>,
    ) -> Result<Self, KeyError> {
        let provider = provider();
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(Arc::new(PinnedKeys {
                pins: Arc::clone(&peers),
                provider,
            }))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified(
                private, spki,
            )?)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Self {
            config: Arc::new(config),
            peers,
        })
    }
}

impl ServerTls {
    /// The listening side among equals: presents `own_private`, and accepts whoever holds that key too.
    ///
    /// # Errors
    /// [`KeyError`] when the key is malformed.
    pub fn among_equals(own_private: &str) -> Result<Self, KeyError> {
        let (private, spki) = decode_private(own_private, "own private")?;
        Self::accepting(
            &private,
            spki.clone(),
            Arc::new([Pin {
                spki,
                owner: PeerKey::Engine,
            }]),
        )
    }
}

impl ClientTls {
    /// The dialing side among equals; see [`ServerTls::among_equals`].
    ///
    /// # Errors
    /// [`KeyError`] when the key is malformed.
    pub fn among_equals(own_private: &str) -> Result<Self, KeyError> {
        let (_, spki) = decode_private(own_private, "own private")?;
        Self::accepting(
            own_private,
            Arc::new([Pin {
                spki,
                owner: PeerKey::Engine,
            }]),
        )
    }

    /// Presents `own_private` (the clients' or the engines' key); accepts exactly the server's.
    ///
    /// # Errors
    /// [`KeyError`] when a key is malformed.
    pub fn new(own_private: &str, server_public: &str) -> Result<Self, KeyError> {
        let peers: Arc<[Pin]> = Arc::new([Pin {
            spki: decode_public(server_public, "server's public")?,
            owner: PeerKey::Server,
        }]);
        Self::accepting(own_private, peers)
    }

    fn accepting(own_private: &str, peers: Arc<[Pin]>) -> Result<Self, KeyError> {
        let provider = provider();
        let (private, spki) = decode_private(own_private, "own private")?;
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedKeys {
                pins: Arc::clone(&peers),
                provider,
            }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                certified(&private, spki)?,
            )));
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.enable_sni = false;
        Ok(Self {
            config: Arc::new(config),
            peers,
        })
    }
}

/// One fast cipher suite, and one for processors without AES instructions.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = crypto::ring::default_provider();
    provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(provider)
}

fn certified(
    private: &PrivatePkcs8KeyDer<'_>,
    spki: Vec<u8>,
) -> Result<Arc<CertifiedKey>, KeyError> {
    let key = crypto::ring::sign::any_eddsa_type(private)?;
    // With raw public keys, the certificate field holds the key itself.
    Ok(Arc::new(CertifiedKey::new(
        vec![CertificateDer::from(spki)],
        key,
    )))
}

/// Accepts a peer if its key equals one of the pinned keys byte for byte, and it proves that it holds the key.
#[derive(Debug)]
struct PinnedKeys {
    pins: Arc<[Pin]>,
    provider: Arc<CryptoProvider>,
}

impl PinnedKeys {
    fn check(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        if others.is_empty() && self.pins.iter().any(|pin| pin.spki == key.as_ref()) {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(key.as_ref()),
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }
}

/// TLS 1.2 is not compiled in, so nobody can have negotiated it.
fn refuse_tls12() -> Error {
    PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
}

/// What both verifiers do with signatures; the two traits require the same methods.
macro_rules! signatures_of_pinned_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(refuse_tls12())
        }
        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check_signature(message, cert, dss)
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for PinnedKeys {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates)?;
        Ok(ServerCertVerified::assertion())
    }
    signatures_of_pinned_keys!();
}

impl ClientCertVerifier for PinnedKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }
    signatures_of_pinned_keys!();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use crate::tls::{KeyPair, generate};
    use crate::{Link, LinkError};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_key_without_its_private_half_is_refused() {
        // Claims to be a client by its public key, but signs with another.
        let (keys, other) = (generate().unwrap(), generate().unwrap());
        let KeyPair { private, .. } = &other.client;
        let (private, _) = decode_private(private, "other").unwrap();
        let claimed = decode_public(&keys.client.public, "claimed").unwrap();
        let resolver =
            AlwaysResolvesClientRawPublicKeys::new(certified(&private, claimed).unwrap());
        let mut tls = ClientTls::new(&keys.client.private, &keys.server.public).unwrap();
        let mut config = (*tls.config).clone();
        config.client_auth_cert_resolver = Arc::new(resolver);
        tls.config = Arc::new(config);

        let server = ServerTls::new(
            &keys.server.private,
            &keys.client.public,
            &keys.engine.public,
        )
        .unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut thief = Link::tls_client(stream, &tls).unwrap();
        let mut link = Link::tls_server(listener.accept().unwrap().0, &server).unwrap();
        let error = loop {
            // The impostor may learn of its refusal at any of these calls; what matters is the server.
            let _ = thief.flush();
            let _ = thief.fill();
            match link.fill() {
                Ok(_) => assert!(!link.is_established()),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LinkError::Tls(_)), "{error}");
        assert!(!link.is_established() && link.peer_key().is_none());
    }
}

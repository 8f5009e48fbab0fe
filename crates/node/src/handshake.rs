//! Who may connect.

use broadleaf_net::Link;
use broadleaf_net::tls::{self, KeyError, PeerKey};
use broadleaf_proto::PROTOCOL_VERSION;
use broadleaf_proto::control::{Hello, Refusal, RefusalKind, Role};

use crate::config::NodeConfig;

/// Fresh keys as JSON: `server`, `client` and `engine`, each `private` and `public` in base64.
///
/// # Errors
/// When the system gives no randomness.
pub fn keys_json() -> Result<String, KeyError> {
    let keys = tls::generate()?;
    let pair =
        |pair: &tls::KeyPair| serde_json::json!({"private": pair.private, "public": pair.public});
    Ok(serde_json::json!({"server": pair(&keys.server), "client": pair(&keys.client), "engine": pair(&keys.engine)})
        .to_string())
}

fn refuse(kind: RefusalKind, message: String) -> Refusal {
    Refusal { kind, message }
}

/// Checks a hello against what the node is and what the connection proved.
///
/// # Errors
/// The refusal to send.
pub fn check(config: &NodeConfig, hello: &Hello, link: &Link) -> Result<(), Refusal> {
    let ours = env!("CARGO_PKG_VERSION");
    if hello.protocol != PROTOCOL_VERSION || hello.broadleaf != ours {
        return Err(refuse(
            RefusalKind::Version,
            format!(
                "the cluster runs Broadleaf {ours} (protocol {PROTOCOL_VERSION}), you run {} (protocol {}); \
                 install the same version on both sides",
                hello.broadleaf, hello.protocol
            ),
        ));
    }
    if hello.cluster_id != config.cluster_id {
        return Err(refuse(
            RefusalKind::Identity,
            format!(
                "this is cluster {:?}, you asked for {:?}",
                config.cluster_id, hello.cluster_id
            ),
        ));
    }
    if hello.python != config.python {
        return Err(refuse(
            RefusalKind::Python,
            format!(
                "the cluster runs Python {}, you run {}; functions cannot travel between them: use the same minor version",
                config.python, hello.python
            ),
        ));
    }
    let me = rustix::process::geteuid().as_raw();
    match (link.peer_credentials(), link.peer_key()) {
        (Some(peer), _) if peer.uid != me && peer.uid != 0 => Err(refuse(
            RefusalKind::Identity,
            format!(
                "the cluster belongs to user {me}, you are user {}",
                peer.uid
            ),
        )),
        (None, Some(PeerKey::Engine)) if matches!(hello.role, Role::Client { .. }) => Err(refuse(
            RefusalKind::Identity,
            "an engine's key does not open a client's connection".to_owned(),
        )),
        (None, _) if !matches!(hello.role, Role::Client { .. }) => Err(refuse(
            RefusalKind::Identity,
            "engines connect to the relay of their own host".to_owned(),
        )),
        _ => Ok(()),
    }
}

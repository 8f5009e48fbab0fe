//! Who may listen where.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use broadleaf_net::{Link, Listener, local, tls};
use broadleaf_proto::FrameKind;
use wires::{client_proof, establish, listen_proof, take, until};

fn listen(path: &std::path::Path) -> std::io::Result<Listener> {
    Listener::unix(path, listen_proof(&tls::generate().unwrap()), None)
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn private_directory() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
    root
}

#[test]
fn a_unix_listener_is_private_and_cleans_up() {
    let root = private_directory();
    let path = root.path().join("run/deep/node.sock");
    let keys = tls::generate().unwrap();
    let listener = Listener::unix(&path, listen_proof(&keys), None).unwrap();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert!(listener.accept().unwrap().is_none());
    assert!(listener.tcp_address().is_none());
    let mut a = Link::unix(local::dial(&path).unwrap())
        .and_then(|link| link.prove_as_dialer(&client_proof(&keys)))
        .unwrap();
    let (mut b, address) = until(|| listener.accept().unwrap());
    assert!(address.is_none());
    establish(&mut a, &mut b).unwrap();
    a.send(FrameKind::Hello, b"hi", &[]).unwrap();
    assert!(a.flush().unwrap());
    let mut frames = Vec::new();
    until(|| (take(&mut b, &mut frames).unwrap() > 0).then_some(()));
    assert_eq!(&frames[0].body[..], b"hi");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let root = private_directory();
    let path = root.path().join("node.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = listen(&path).unwrap();
    let error = listen(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    UnixStream::connect(&path).unwrap();
    // A successor's socket is left alone.
    fs::remove_file(&path).unwrap();
    let successor = listen(&path).unwrap();
    drop(listener);
    UnixStream::connect(&path).unwrap();
    drop(successor);
    assert!(!path.exists());
}

#[test]
fn other_files_and_open_directories_are_refused() {
    let root = private_directory();
    let path = root.path().join("node.sock");
    fs::write(&path, "precious").unwrap();
    assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(
        listen(&path).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
}

#[test]
fn a_path_longer_than_an_address_serves() {
    let root = private_directory();
    let path = root.path().join("d".repeat(200)).join("node.sock");
    let listener = listen(&path).unwrap();
    local::dial(&path).unwrap();
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn nobody_dials_into_a_directory_that_others_can_write_to() {
    let root = private_directory();
    let path = root.path().join("node.sock");
    let _listener = listen(&path).unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = local::dial(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    // Others could replace a link to a private directory.
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let elsewhere = private_directory();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(root.path(), &link).unwrap();
    local::dial(&link.join("node.sock")).unwrap_err();
    local::dial(&path).unwrap();
}

//! Who may listen where.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use broadleaf_net::{Link, Listener};
use broadleaf_proto::FrameKind;
use wires::{take, until};

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
    let listener = Listener::unix(&path).unwrap();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert!(listener.accept().unwrap().is_none());
    assert!(listener.tcp_address().is_none());
    let mut a = Link::unix(UnixStream::connect(&path).unwrap()).unwrap();
    let mut b = until(|| listener.accept().unwrap());
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
    let listener = Listener::unix(&path).unwrap();
    let error = Listener::unix(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    UnixStream::connect(&path).unwrap();
    // A successor's socket is left alone.
    fs::remove_file(&path).unwrap();
    let successor = Listener::unix(&path).unwrap();
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
    assert_eq!(
        Listener::unix(&path).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(
        Listener::unix(&path).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
}

//! Objects that come over several connections, some of which are slow, end, or say nothing more.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use broadleaf_net::Link;
use broadleaf_proto::relay::{Fetch, PayloadCommand, Progress, Source};
use broadleaf_proto::{Chunk, FrameKind, HostId, ObjectId, control};
use broadleaf_shm::{Pool, Segment};
use rustix::net::RecvFlags;

use super::sealed::Cluster;
use super::{
    CHUNK, accept, dial_proof, hello, listen, next, pool, relay_with, serve, source, wait_until,
};
use crate::payload::{Plane, PlaneCommand, PlaneEvent, Setup};

const OBJECT: ObjectId = ObjectId(6);
const N_CHUNKS: u64 = 400;
/// More than sockets hold of an object, once their buffers are limited.
const PART: usize = 2 << 20;
const LEN: usize = N_CHUNKS as usize * CHUNK as usize - 100;
const SMALL_BUFFER: usize = 16 * 1024;

fn data() -> Vec<u8> {
    (0..LEN).map(|i| (i * 31 % 251) as u8).collect()
}

/// Makes planes of one cluster.
enum Hosts {
    /// With the controller's listener: nobody answers there.
    Plain(TcpListener),
    Sealed(Cluster),
}

impl Hosts {
    fn both() -> [Self; 2] {
        [Self::Plain(listen().0), Self::Sealed(Cluster::new())]
    }

    fn relay(&self, host: u32, streams: usize) -> (Plane, SocketAddr) {
        match self {
            Self::Plain(controller) => {
                let controller = controller.local_addr().unwrap();
                relay_with(controller, host, SMALL_BUFFER, streams)
            }
            Self::Sealed(cluster) => cluster.relay_with(host, SMALL_BUFFER, streams),
        }
    }
}

fn provide(plane: &Plane) {
    let (segment, _) = Segment::create(LEN as u64, &data()).unwrap();
    plane.order(PlaneCommand::Provide {
        object: OBJECT,
        bytes: segment.map_readonly(0, LEN as u64).unwrap(),
        chunk_bytes: CHUNK,
        memory: None,
    });
}

fn fetch(plane: &Plane, pool: &mut Pool, sources: Vec<Source>) {
    plane.order(PlaneCommand::Fetch {
        fetch: Fetch {
            object: OBJECT,
            len_bytes: LEN as u64,
            chunk_bytes: CHUNK,
            sources,
            epoch: 0,
        },
        lease: Some(pool.allocate(LEN as u64).unwrap()),
    });
}

/// Waits for the object, which must be right; returns the last report.
fn wait_for(plane: &Plane) -> Progress {
    let (mut last, mut bytes) = (None, None);
    wait_until(|| {
        for news in plane.take_events() {
            match news {
                PlaneEvent::Progress(progress) => last = Some(progress),
                PlaneEvent::Ready {
                    fd, segment_bytes, ..
                } => {
                    let segment = Segment::from_fd(fd, segment_bytes).unwrap();
                    bytes = Some(segment.map_readonly(0, LEN as u64).unwrap());
                }
                PlaneEvent::Failed { reason, .. } => panic!("{reason}"),
                PlaneEvent::Dropped(_) | PlaneEvent::MoverGone => {}
            }
        }
        bytes.is_some()
    });
    assert!(bytes.unwrap()[..] == data());
    last.unwrap()
}

/// What is done with the bytes that the dialled end sends next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Pass,
    /// The same is asked again.
    Hold,
    Cut,
}

/// Bytes that have passed over each connection to the dialling end, in the order of the connections.
#[derive(Default)]
struct Passed {
    bytes: Mutex<Vec<usize>>,
    changed: Condvar,
}

/// Wires to an address, as many as are dialled; returns the address to dial instead. `act` is asked what to do on a
/// connection, given what has passed on all of them.
fn wires(
    to: SocketAddr,
    act: impl Fn(usize, &[usize]) -> Act + Send + Sync + 'static,
) -> (SocketAddr, Arc<Passed>) {
    let passed = Arc::new(Passed::default());
    let (record, act) = (Arc::clone(&passed), Arc::new(act));
    let (address, _) = serve(move |listener| {
        while let Ok((near, _)) = listener.accept() {
            let Ok(far) = TcpStream::connect(to) else {
                return;
            };
            let index = record.bytes.lock().unwrap().len();
            record.bytes.lock().unwrap().push(0);
            record.changed.notify_all();
            let (record, act) = (Arc::clone(&record), Arc::clone(&act));
            let (mut from, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                // The thread ends with the connection.
                let _ = std::io::copy(&mut from, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || wire(near, far, index, &record, act.as_ref()));
        }
    });
    (address, passed)
}

fn wire(
    mut near: TcpStream,
    mut far: TcpStream,
    index: usize,
    passed: &Passed,
    act: &dyn Fn(usize, &[usize]) -> Act,
) {
    let mut buffer = vec![0; 1 << 14];
    'parts: while let Ok(count @ 1..) = far.read(&mut buffer) {
        loop {
            let bytes = passed.bytes.lock().unwrap();
            let what = act(index, &bytes);
            // One that holds forever ends with the connection.
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let is_gone = matches!(rustix::net::recv(&near, &mut [0], flags), Ok((0, _)));
            match what {
                _ if is_gone => break 'parts,
                Act::Cut => break 'parts,
                // Nobody says when the connection ends.
                Act::Hold => {
                    let limit = Duration::from_millis(20);
                    drop(passed.changed.wait_timeout(bytes, limit).unwrap());
                }
                Act::Pass => break,
            }
        }
        if near.write_all(&buffer[..count]).is_err() {
            break;
        }
        passed.bytes.lock().unwrap()[index] += count;
        passed.changed.notify_all();
    }
    let _ = near.shutdown(Shutdown::Both);
    let _ = far.shutdown(Shutdown::Both);
}

/// Holds each connection until `n` of them have passed as much.
fn in_step(n: usize) -> impl Fn(usize, &[usize]) -> Act {
    move |index, passed| {
        let is_ahead = passed[index] > passed.iter().min().unwrap() + PART / 4;
        let is_early = passed.len() < n && passed[index] > PART / 4;
        let is_over = passed.iter().sum::<usize>() > LEN - n * PART;
        if (is_ahead || is_early) && !is_over {
            Act::Hold
        } else {
            Act::Pass
        }
    }
}

#[test]
fn an_object_comes_over_as_many_connections_as_are_to_be_used() {
    for n in [1, 2, 4] {
        for hosts in Hosts::both() {
            let (origin, address) = hosts.relay(1, 1);
            let (address, passed) = wires(address, in_step(n));
            let (tail, _) = hosts.relay(2, n);
            let mut pool = pool();
            provide(&origin);
            fetch(&tail, &mut pool, vec![source(1, Some(address))]);
            let progress = wait_for(&tail);
            assert!(
                progress.resumed_at.is_empty(),
                "{progress:?} {n} {:?}",
                passed.bytes.lock()
            );
            assert_eq!(progress.wire_bytes, LEN as u64, "nothing comes twice");
            let passed = passed.bytes.lock().unwrap();
            assert_eq!(passed.len(), n);
            assert!(passed.iter().all(|bytes| *bytes > PART / 8), "{passed:?}");
        }
    }
}

#[test]
fn the_rest_comes_over_one_connection_when_another_ends() {
    for hosts in Hosts::both() {
        let (origin, address) = hosts.relay(1, 1);
        let step = in_step(3);
        let (address, passed) = wires(address, move |index, passed| match passed[..] {
            [_, second, _] if second > PART && index == 1 => Act::Cut,
            [_, second, _] if second > PART => Act::Pass,
            _ => step(index, passed),
        });
        let (tail, _) = hosts.relay(2, 3);
        let mut pool = pool();
        provide(&origin);
        fetch(&tail, &mut pool, vec![source(1, Some(address))]);
        let progress = wait_for(&tail);
        assert!(progress.resumed_at.is_empty(), "{progress:?}");
        assert!(
            progress.wire_bytes < 2 * LEN as u64,
            "and not from the start"
        );
        assert_eq!(passed.bytes.lock().unwrap().len(), 3);
    }
}

#[test]
fn what_waits_in_a_connection_that_says_nothing_more_comes_over_another() {
    for hosts in Hosts::both() {
        let (origin, address) = hosts.relay(1, 1);
        let (address, passed) = wires(address, |index, passed| {
            let is_held = match index {
                0 => passed.len() < 2 && passed[0] > PART,
                _ => passed[index] > PART,
            };
            if is_held { Act::Hold } else { Act::Pass }
        });
        let (tail, _) = hosts.relay(2, 2);
        let mut pool = pool();
        provide(&origin);
        fetch(&tail, &mut pool, vec![source(1, Some(address))]);
        let progress = wait_for(&tail);
        assert!(progress.resumed_at.is_empty(), "{progress:?}");
        assert!(
            progress.wire_bytes < 2 * LEN as u64,
            "and not from the start"
        );
        assert_eq!(passed.bytes.lock().unwrap().len(), 2);
    }
}

#[test]
fn the_rest_comes_from_another_host_when_the_first_connection_ends_or_the_host() {
    for hosts in Hosts::both() {
        for ends_all in [false, true] {
            let (bad, bad_address) = hosts.relay(1, 1);
            let step = in_step(3);
            let (bad_address, _) = wires(bad_address, move |index, passed| {
                let is_over = passed.len() == 3 && passed.iter().all(|bytes| *bytes > PART);
                if is_over && (index == 0 || ends_all) {
                    return Act::Cut;
                }
                step(index, passed)
            });
            let (good, good_address) = hosts.relay(2, 1);
            let (tail, _) = hosts.relay(3, 3);
            let mut pool = pool();
            provide(&bad);
            provide(&good);
            let sources = vec![source(1, Some(bad_address)), source(2, Some(good_address))];
            fetch(&tail, &mut pool, sources);
            let progress = wait_for(&tail);
            assert_eq!(progress.source, HostId(2));
            let [resumed_at] = progress.resumed_at[..] else {
                panic!("{progress:?}");
            };
            assert!(resumed_at > 0, "it resumes");
        }
    }
}

#[test]
fn a_host_that_asks_for_what_comes_out_of_order_gets_it_in_order() {
    for hosts in Hosts::both() {
        let (origin, address) = hosts.relay(1, 1);
        let (address, _) = wires(address, in_step(3));
        let (head, head_address) = hosts.relay(2, 3);
        let (tail, _) = hosts.relay(3, 1);
        let mut pools = [pool(), pool()];
        fetch(&head, &mut pools[0], vec![source(1, Some(address))]);
        fetch(&tail, &mut pools[1], vec![source(2, Some(head_address))]);
        provide(&origin);
        for plane in [&head, &tail] {
            let progress = wait_for(plane);
            assert!(progress.resumed_at.is_empty());
            assert_eq!(progress.wire_bytes, LEN as u64);
        }
    }
}

#[test]
fn a_host_that_cannot_dial_has_the_other_one_open_connections() {
    let (listener, address) = listen();
    let controller = Plane::start(Setup {
        hello: hello(0),
        listener: None,
        dialer: None,
        secret: None,
        socket_buffer_bytes: SMALL_BUFFER,
        streams: 3,
        piece_bytes: 2 * CHUNK,
        cores: 0,
        niceness: 0,
    })
    .unwrap();
    let (address, passed) = wires(address, |_, _| Act::Pass);
    let (relay, _) = relay_with(address, 1, SMALL_BUFFER, 1);
    let mut pool = pool();
    let adopt = || {
        controller.order(PlaneCommand::Adopt {
            link: Box::new(accept(&listener)),
            host: HostId(1),
        });
    };
    adopt();
    // The relay does not have the object before all connections are open.
    fetch(&controller, &mut pool, vec![source(1, None)]);
    adopt();
    adopt();
    provide(&relay);
    let progress = wait_for(&controller);
    assert_eq!(progress.wire_bytes, LEN as u64);
    assert_eq!(passed.bytes.lock().unwrap().len(), 3);
}

fn send(link: &mut Link, pull: u32, indices: impl Iterator<Item = u64>) {
    let data = data();
    for index in indices {
        let offset = index * u64::from(CHUNK);
        let end = (offset as usize + CHUNK as usize).min(LEN);
        let bytes = &data[offset as usize..end];
        let mut head = Vec::new();
        Chunk::encode_head(OBJECT, pull, crc32c::crc32c(bytes), offset, &mut head);
        link.send_parts(FrameKind::Chunk, &head, bytes).unwrap();
        while !link.flush().unwrap() {
            link.wait(true, Some(Duration::from_secs(20))).unwrap();
        }
    }
}

fn next_command(link: &mut Link) -> PayloadCommand {
    let body = next(link, FrameKind::PayloadCommand).unwrap();
    control::decode(&body).unwrap()
}

/// As above, and says meanwhile that there is nothing to send.
fn next_command_while_waiting(link: &mut Link, pull: u32) -> PayloadCommand {
    let object = OBJECT;
    loop {
        say(link, &PayloadCommand::Waiting { object, pull });
        link.wait(false, Some(Duration::from_millis(100))).unwrap();
        link.fill().unwrap();
        if let Some(frame) = link.next_frame().unwrap() {
            return control::decode(&frame.body).unwrap();
        }
    }
}

#[test]
fn a_chunk_that_never_comes_is_asked_for_again_over_one_connection() {
    let (address, server) = serve(|listener| {
        let mut links = [accept(&listener), accept(&listener)];
        let PayloadCommand::Pull { pull, .. } = next_command(&mut links[0]) else {
            panic!("it asks for nothing");
        };
        send(&mut links[0], pull, 0..1);
        let join = next_command(&mut links[1]);
        assert!(matches!(join, PayloadCommand::Join { pull: of, .. } if of == pull));
        send(&mut links[1], pull, 2..N_CHUNKS);
        // Then that one is silent, and the first is not.
        let PayloadCommand::Pull {
            offset_bytes,
            pull: again,
            ..
        } = next_command_while_waiting(&mut links[0], pull)
        else {
            panic!("it does not ask again");
        };
        assert_eq!((offset_bytes, again), (u64::from(CHUNK), pull + 1));
        send(&mut links[0], again, 1..N_CHUNKS);
        next(&mut links[0], FrameKind::PayloadCommand);
    });
    let (tail, _) = relay_with(address, 2, SMALL_BUFFER, 2);
    let mut pool = pool();
    fetch(&tail, &mut pool, vec![source(0, None)]);
    let progress = wait_for(&tail);
    assert_eq!(progress.corrupt_chunks, 0);
    drop(tail);
    server.join().unwrap();
}

/// A connection of a host that pulls by hand.
fn dial(address: SocketAddr, host: u32) -> Link {
    let link = Link::tcp(TcpStream::connect(address).unwrap()).unwrap();
    let mut link = link.prove_as_dialer(&dial_proof()).unwrap();
    link.set_frame_limit(broadleaf_proto::limits::MAX_CHUNK_FRAME_BYTES);
    let hello = control::encode(&hello(host));
    link.send(FrameKind::Hello, &hello, &[]).unwrap();
    next(&mut link, FrameKind::Welcome).unwrap();
    link
}

fn say(link: &mut Link, command: &PayloadCommand) {
    let body = control::encode(command);
    link.send(FrameKind::PayloadCommand, &body, &[]).unwrap();
    link.flush().unwrap();
}

fn pull(link: &mut Link, pull: u32) {
    let command = PayloadCommand::Pull {
        object: OBJECT,
        offset_bytes: 0,
        pull,
        round_trip_ns: 1000,
        landing: None,
    };
    say(link, &command);
}

fn join(link: &mut Link, pull: u32) {
    let command = PayloadCommand::Join {
        object: OBJECT,
        pull,
        round_trip_ns: 1000,
    };
    say(link, &command);
}

fn next_chunk(link: &mut Link) -> (u32, u64) {
    let chunk = Chunk::decode(next(link, FrameKind::Chunk).unwrap()).unwrap();
    (chunk.pull, chunk.offset_bytes / u64::from(CHUNK))
}

#[test]
fn a_pull_is_joined_by_the_same_host_alone_and_while_it_lasts() {
    let (_nobody_answers, controller) = listen();
    let (origin, address) = relay_with(controller, 1, SMALL_BUFFER, 1);
    provide(&origin);
    let mut first = dial(address, 7);
    pull(&mut first, 5);
    assert_eq!(next_chunk(&mut first), (5, 0));
    let (mut other, mut second) = (dial(address, 8), dial(address, 7));
    // Neither another host's pull nor one that is not known sends anything: what comes first answers the last request.
    join(&mut other, 5);
    join(&mut second, 4);
    pull(&mut other, 1);
    assert_eq!(next_chunk(&mut other), (1, 0));
    join(&mut second, 5);
    let (of, from) = next_chunk(&mut second);
    assert_eq!(of, 5);
    assert!(from > 1, "it goes on where the first has come to");
    let mut seen: Vec<u64> = vec![0, from];
    let mut is_next = 1;
    while is_next < from {
        let (_, index) = next_chunk(&mut first);
        seen.push(index);
        is_next = index + 1;
    }
    seen.sort_unstable();
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
}

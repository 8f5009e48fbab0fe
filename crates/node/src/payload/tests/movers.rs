//! A plane with a mover that obeys, dies in the middle, makes no progress, or exists at one end only.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::Duration;

use broadleaf_net::Link;
use broadleaf_proto::mover::{Flow, Landing, MoverCommand, MoverEvent, MoverRank};
use broadleaf_proto::relay::{Fetch, PayloadCommand, Source};
use broadleaf_proto::{FrameKind, HostId, ObjectId, control};
use broadleaf_shm::{Pool, PoolConfig, Segment};

use super::{CHUNK, N_CHUNKS, OBJECT, accept, data, next, plane, send, serve, wait_for};
use crate::payload::{Plane, PlaneCommand, PlaneEvent};

const OURS: MoverRank = MoverRank { world: 7, rank: 1 };
const THEIRS: MoverRank = MoverRank { world: 7, rank: 0 };

/// The mover's end of a connection to the plane.
struct FakeMover {
    link: Link,
}

impl FakeMover {
    fn at(plane: &Plane) -> Self {
        let (near, link) = Link::pair().unwrap();
        let link_of_plane = Box::new(near);
        plane.order(PlaneCommand::Mover {
            link: link_of_plane,
            mover: OURS,
        });
        Self { link }
    }

    fn command(&mut self) -> Option<(MoverCommand, Option<OwnedFd>)> {
        loop {
            self.link.flush().ok()?;
            if let Some(frame) = self.link.next_frame().ok()? {
                let command = control::decode(&frame.body).unwrap();
                return Some((command, frame.fds.into_iter().next()));
            }
            self.link.wait(true, Some(Duration::from_secs(20))).ok()?;
            self.link.fill().ok()?;
        }
    }

    fn say(&mut self, event: &MoverEvent) {
        let body = control::encode(event);
        self.link.send(FrameKind::MoverEvent, &body, &[]).unwrap();
        self.link.flush().unwrap();
    }

    fn receive(&mut self) -> (Flow, Segment) {
        let Some((MoverCommand::Receive(flow), Some(fd))) = self.command() else {
            panic!("not told to receive");
        };
        let segment = Segment::from_fd(fd, flow.len_bytes).unwrap();
        (flow, segment)
    }

    /// The end of the bytes of a flow that have memory.
    fn room(&mut self, of: &Flow) -> u64 {
        match self.command().unwrap().0 {
            MoverCommand::Ready { flow, end_bytes } if flow == of.flow => end_bytes,
            command => panic!("{command:?}"),
        }
    }

    /// As [`FakeMover::receive`], of an object that has all its memory at once.
    fn receive_all(&mut self) -> (Flow, Segment) {
        let (flow, segment) = self.receive();
        assert_eq!(self.room(&flow), flow.len_bytes);
        (flow, segment)
    }

    /// Writes into the segment as MPI would, up to a byte.
    fn move_to(&mut self, flow: &Flow, segment: &Segment, end_bytes: u64) {
        let memory = File::from(segment.fd().try_clone_to_owned().unwrap());
        memory
            .write_all_at(&data()[..end_bytes as usize], 0)
            .unwrap();
        self.say(&MoverEvent::Moved {
            flow: flow.flow,
            end_bytes,
        });
    }
}

fn open_pool() -> Pool {
    Pool::new(
        1,
        PoolConfig {
            open: true,
            ..PoolConfig::default()
        },
    )
}

fn fetch_by_mpi(plane: &Plane, pool: &mut Pool) {
    fetch_bytes_by_mpi(plane, pool, len());
}

fn fetch_bytes_by_mpi(plane: &Plane, pool: &mut Pool, len_bytes: u64) {
    plane.order(PlaneCommand::Fetch {
        fetch: Fetch {
            object: OBJECT,
            len_bytes,
            chunk_bytes: CHUNK,
            sources: vec![Source {
                host: HostId(0),
                address: None,
                mover: Some(THEIRS),
            }],
            epoch: 0,
        },
        lease: Some(pool.allocate(len_bytes).unwrap()),
    });
}

/// The next pull: offset, number, and the mover that MPI should send to.
fn next_pull(link: &mut Link) -> Option<(u64, u32, Option<Landing>)> {
    loop {
        let body = next(link, FrameKind::PayloadCommand)?;
        if let PayloadCommand::Pull {
            offset_bytes,
            pull,
            landing,
            ..
        } = control::decode(&body).ok()?
        {
            return Some((offset_bytes, pull, landing));
        }
    }
}

/// A source that takes one pull, and sends nothing over TCP until the plane is gone.
fn source_that_sends_by_mpi() -> (SocketAddr, JoinHandle<()>) {
    serve(|listener| {
        let mut link = accept(&listener);
        next_pull(&mut link);
        next_pull(&mut link);
    })
}

/// Whether the plane has told of such an event since the last call.
fn has_told(plane: &Plane, is_it: impl Fn(&PlaneEvent) -> bool) -> bool {
    plane.take_events().iter().any(is_it)
}

fn len() -> u64 {
    data().len() as u64
}

#[test]
fn an_object_comes_by_mpi_and_no_chunk_over_tcp() {
    let (address, server) = serve(|listener| {
        let mut link = accept(&listener);
        let (offset, _, landing) = next_pull(&mut link).unwrap();
        assert_eq!((offset, landing.unwrap().mover), (0, OURS));
        next_pull(&mut link);
    });
    let plane = plane(address);
    let mut mover = FakeMover::at(&plane);
    fetch_by_mpi(&plane, &mut open_pool());
    let (flow, segment) = mover.receive_all();
    assert_eq!((flow.peer, flow.from_bytes), (THEIRS.rank, 0));
    mover.move_to(&flow, &segment, 4 * u64::from(CHUNK));
    mover.move_to(&flow, &segment, len());
    mover.say(&MoverEvent::Ended { flow: flow.flow });
    let (bytes, progress) = wait_for(&plane).unwrap();
    assert!(bytes == data());
    assert_eq!((progress.mover_bytes, progress.wire_bytes), (len(), 0));
    drop(plane);
    server.join().unwrap();
}

#[test]
fn memory_of_a_large_object_is_allocated_as_it_arrives() {
    let (address, server) = source_that_sends_by_mpi();
    let plane = plane(address);
    let mut mover = FakeMover::at(&plane);
    let n_bytes = 256 << 20;
    let mut pool = Pool::new(
        1,
        PoolConfig {
            max_bytes: 2 * n_bytes,
            ..PoolConfig::default()
        },
    );
    fetch_bytes_by_mpi(&plane, &mut pool, n_bytes);
    let (flow, segment) = mover.receive();
    let allocated = || {
        rustix::fs::fstat(segment.fd())
            .unwrap()
            .st_blocks
            .unsigned_abs()
            * 512
    };
    let (mut end_bytes, mut rooms) = (0, 0);
    while end_bytes < n_bytes {
        let room_bytes = mover.room(&flow);
        assert!(end_bytes < room_bytes && room_bytes <= allocated());
        assert!(
            allocated() <= end_bytes + (n_bytes >> 3),
            "memory for what is far from having come: {} of {n_bytes} bytes, of which {end_bytes} are there",
            allocated()
        );
        end_bytes = room_bytes;
        rooms += 1;
        mover.say(&MoverEvent::Moved {
            flow: flow.flow,
            end_bytes,
        });
    }
    assert!(rooms >= 8);
    mover.say(&MoverEvent::Ended { flow: flow.flow });
    super::wait_until(|| has_told(&plane, |e| matches!(e, PlaneEvent::Ready { .. })));
    drop(plane);
    server.join().unwrap();
}

#[test]
fn when_the_mover_dies_the_rest_comes_over_tcp_from_the_byte_it_had() {
    let chunk = u64::from(CHUNK);
    for moved in [0, N_CHUNKS / 2 * chunk, (N_CHUNKS - 1) * chunk] {
        let (address, server) = serve(move |listener| {
            let mut link = accept(&listener);
            assert!(next_pull(&mut link).unwrap().2.is_some());
            let (offset, pull, landing) = next_pull(&mut link).unwrap();
            assert_eq!((offset, landing), (moved, None), "it resumes, over TCP");
            send(&mut link, (offset, pull), N_CHUNKS, None);
            next_pull(&mut link);
        });
        let plane = plane(address);
        let mut mover = FakeMover::at(&plane);
        fetch_by_mpi(&plane, &mut open_pool());
        let (flow, segment) = mover.receive_all();
        if moved > 0 {
            mover.move_to(&flow, &segment, moved);
        }
        drop(mover);
        let (bytes, progress) = wait_for(&plane).unwrap();
        assert!(bytes == data());
        assert_eq!(
            (progress.mover_bytes, progress.wire_bytes),
            (moved, len() - moved)
        );
        assert_eq!(progress.resumed_at, [moved]);
        drop(plane);
        server.join().unwrap();
    }
}

#[test]
fn a_source_without_a_mover_sends_over_tcp() {
    let (address, server) = serve(|listener| {
        let mut link = accept(&listener);
        let (_, pull, landing) = next_pull(&mut link).unwrap();
        assert!(landing.is_some());
        let body = control::encode(&PayloadCommand::NoMover {
            object: OBJECT,
            pull,
        });
        link.send(FrameKind::PayloadCommand, &body, &[]).unwrap();
        let (offset, pull, landing) = next_pull(&mut link).unwrap();
        assert_eq!((offset, landing), (0, None));
        send(&mut link, (offset, pull), N_CHUNKS, None);
        next_pull(&mut link);
    });
    let plane = plane(address);
    let mut mover = FakeMover::at(&plane);
    fetch_by_mpi(&plane, &mut open_pool());
    let (flow, _) = mover.receive_all();
    let flow = flow.flow;
    assert_eq!(mover.command().unwrap().0, MoverCommand::Abandon { flow });
    // Nothing is requested while MPI may still write.
    mover.say(&MoverEvent::Ended { flow });
    let (bytes, progress) = wait_for(&plane).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.mover_bytes, 0);
    drop(plane);
    server.join().unwrap();
}

#[test]
fn memory_that_mpi_may_write_is_given_back_once_it_may_not() {
    let (address, server) = source_that_sends_by_mpi();
    let plane = plane(address);
    let mut mover = FakeMover::at(&plane);
    fetch_by_mpi(&plane, &mut open_pool());
    let (flow, segment) = mover.receive_all();
    mover.move_to(&flow, &segment, u64::from(CHUNK));
    plane.order(PlaneCommand::Drop(OBJECT));
    let flow = flow.flow;
    assert_eq!(mover.command().unwrap().0, MoverCommand::Stop { flow });
    let gives_back = || has_told(&plane, |e| matches!(e, PlaneEvent::Dropped(_)));
    assert!(!gives_back());
    mover.say(&MoverEvent::Ended { flow });
    super::wait_until(gives_back);
    drop(plane);
    server.join().unwrap();
}

#[test]
fn what_a_host_has_is_sent_as_it_comes_and_ends_where_it_is_cancelled() {
    let other = ObjectId(6);
    let landing = Landing {
        mover: THEIRS,
        tag: 9,
        piece_bytes: 2 * CHUNK,
    };
    let (address, server) = serve(move |listener| {
        let mut link = accept(&listener);
        let (.., ours) = next_pull(&mut link).unwrap();
        assert!(ours.is_some());
        for (object, pull) in [(OBJECT, 4), (other, 5)] {
            let word = PayloadCommand::Pull {
                object,
                offset_bytes: 0,
                pull,
                round_trip_ns: 0,
                landing: Some(landing),
            };
            let body = control::encode(&word);
            link.send(FrameKind::PayloadCommand, &body, &[]).unwrap();
        }
        let body = control::encode(&PayloadCommand::Cancel { object: other });
        link.send(FrameKind::PayloadCommand, &body, &[]).unwrap();
        link.flush().unwrap();
        next_pull(&mut link);
    });
    let plane = plane(address);
    let mut mover = FakeMover::at(&plane);
    fetch_by_mpi(&plane, &mut open_pool());
    let (incoming, segment) = mover.receive_all();
    let (mut sent, mut unknown) = (None, None);
    while sent.is_none() || unknown.is_none() {
        match mover.command().unwrap() {
            (MoverCommand::Send(flow), Some(_)) => sent = Some(flow),
            // Nobody knows this object, but the host that waits for it is told that it will not
            // arrive.
            (MoverCommand::Send(flow), None) => unknown = Some(flow),
            (MoverCommand::Stop { flow }, _) => assert_eq!(flow, unknown.as_ref().unwrap().flow),
            (command, _) => panic!("{command:?}"),
        }
    }
    let sent = sent.unwrap();
    assert_eq!(
        (sent.peer, sent.tag, sent.len_bytes),
        (THEIRS.rank, 9, len())
    );
    for end_bytes in [u64::from(CHUNK), len()] {
        mover.move_to(&incoming, &segment, end_bytes);
        loop {
            let flow = sent.flow;
            match mover.command().unwrap().0 {
                MoverCommand::Ready {
                    flow: of,
                    end_bytes: to,
                } => {
                    assert_eq!((of, to), (flow, end_bytes));
                    break;
                }
                MoverCommand::Stop { flow } => assert_eq!(flow, unknown.as_ref().unwrap().flow),
                command => panic!("{command:?}"),
            }
        }
    }
    drop(plane);
    server.join().unwrap();
}

#[test]
fn a_host_that_is_idle_says_at_once_that_mpi_cannot_send_an_object() {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (answer, answers) = std::sync::mpsc::channel();
    let (address, server) = serve(move |listener| {
        let mut link = accept(&listener);
        is_ready.recv().unwrap();
        let word = PayloadCommand::Pull {
            object: OBJECT,
            offset_bytes: 0,
            pull: 4,
            round_trip_ns: 0,
            landing: Some(Landing {
                mover: THEIRS,
                tag: 9,
                piece_bytes: 2 * CHUNK,
            }),
        };
        let body = control::encode(&word);
        link.send(FrameKind::PayloadCommand, &body, &[]).unwrap();
        let body = next(&mut link, FrameKind::PayloadCommand).unwrap();
        answer.send(control::decode(&body).unwrap()).unwrap();
        next_pull(&mut link);
    });
    let plane = plane(address);
    let _mover = FakeMover::at(&plane);
    // As the bytes that measure bandwidth: they are not in a segment that a mover could map.
    let (segment, _) = Segment::create(len(), &[]).unwrap();
    plane.order(PlaneCommand::Provide {
        object: OBJECT,
        bytes: segment.map_readonly(0, len()).unwrap(),
        chunk_bytes: CHUNK,
        memory: None,
    });
    ready.send(()).unwrap();
    let said: PayloadCommand = answers.recv_timeout(Duration::from_secs(20)).unwrap();
    let expected = PayloadCommand::NoMover {
        object: OBJECT,
        pull: 4,
    };
    assert_eq!(said, expected);
    drop(plane);
    server.join().unwrap();
}

#[test]
fn movers_of_two_worlds_do_not_meet() {
    let (address, server) = serve(|listener| {
        let mut link = accept(&listener);
        let (offset, pull, landing) = next_pull(&mut link).unwrap();
        assert_eq!(landing, None);
        send(&mut link, (offset, pull), N_CHUNKS, None);
        next_pull(&mut link);
    });
    let plane = plane(address);
    let (near, _far) = Link::pair().unwrap();
    plane.order(PlaneCommand::Mover {
        link: Box::new(near),
        mover: MoverRank { world: 8, rank: 1 },
    });
    fetch_by_mpi(&plane, &mut open_pool());
    assert!(wait_for(&plane).unwrap().0 == data());
    drop(plane);
    server.join().unwrap();
}

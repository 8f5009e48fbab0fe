//! The payload plane: moves objects between hosts, on a thread and connections of its own.
//!
//! The node's thread gives commands and this one carries them out: it pulls objects into segments,
//! chunk by chunk, and serves what has arrived to other hosts while the rest is still on its way.
//! So a small task never waits behind payload, neither in a queue nor for a thread.

mod ask;
mod connection;
mod cores;
mod dial;
mod fetch;
mod mover;
mod object;
mod plane;
mod receive;
mod streams;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use broadleaf_net::{DialSecurity, Link, Listener, Route};
use broadleaf_proto::control::Hello;
use broadleaf_proto::relay::{Fetch, Progress};
use broadleaf_proto::{HostId, MoverRank, ObjectId, PayloadSecret, SegmentId};
use broadleaf_shm::{Lease, Mapping};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

/// What the node's thread wants.
#[derive(Debug)]
pub enum PlaneCommand {
    /// Serve an object that is all here.
    Provide {
        /// The object.
        object: ObjectId,
        /// Its bytes.
        bytes: Mapping,
        /// The pieces it travels in.
        chunk_bytes: u32,
        /// Where MPI finds it: a segment, and where it begins there.
        memory: Option<(OwnedFd, u64)>,
    },
    /// Get an object; without a lease, redirect a fetch of it that is already under way.
    Fetch {
        /// What, and from whom.
        fetch: Fetch,
        /// Where its bytes go.
        lease: Option<Lease>,
    },
    /// Forget an object; its lease comes back by [`PlaneEvent::Dropped`].
    Drop(ObjectId),
    /// Serve and use a connection that was accepted elsewhere.
    Adopt {
        /// The connection, after its hello.
        link: Box<Link>,
        /// Who is at its other end.
        host: HostId,
    },
    /// Use this host's mover.
    Mover {
        /// The connection, after its hello.
        link: Box<Link>,
        /// Which it is.
        mover: MoverRank,
    },
    /// A host does not answer, or does so again: what is fetched from it waits for it meanwhile.
    Away {
        /// The host.
        host: HostId,
        /// Whether it is silent.
        is_away: bool,
    },
    /// Close these: the last descriptor of a large segment takes its pages with it, which takes time.
    Close(Vec<OwnedFd>),
    /// End the thread.
    Stop,
}

/// What the node's thread is told.
#[derive(Debug)]
pub enum PlaneEvent {
    /// How far a fetch is.
    Progress(Progress),
    /// A fetched object is complete and checked.
    Ready {
        /// The object.
        object: ObjectId,
        /// The segment it lies in, from its first byte on.
        segment: SegmentId,
        /// The segment's descriptor.
        fd: OwnedFd,
        /// The segment's size.
        segment_bytes: u64,
    },
    /// Nobody gave the object, or there is no memory for it.
    Failed {
        /// The object.
        object: ObjectId,
        /// For the user.
        reason: String,
    },
    /// The segment of a dropped object.
    Dropped(Lease),
    /// This host's mover is gone.
    MoverGone,
}

/// How this host reaches others.
#[derive(Debug)]
pub struct Dialer {
    /// How the controller is reached.
    pub controller: Route,
    /// Security of connections to other relays.
    pub to_relays: DialSecurity,
}

/// What a plane is made of.
#[derive(Debug)]
pub struct Setup {
    /// What this side says first; its role holds the host's number.
    pub hello: Hello,
    /// Where other relays dial in.
    pub listener: Option<Listener>,
    /// `None` for the controller's node, which dials nobody.
    pub dialer: Option<Dialer>,
    /// What payload is sealed with; `None` without encryption.
    pub secret: Option<PayloadSecret>,
    /// Send buffer of a payload connection whose round trip is short enough for it: what may wait in the network.
    pub socket_buffer_bytes: usize,
    /// Connections over which payload comes from one host; 0 to find the number.
    pub streams: usize,
    /// Bytes of a message of MPI.
    pub piece_bytes: u32,
    /// Number of cores that the thread keeps to, the last of those that the process may use; 0 for the last one as long
    /// as it suffices.
    pub cores: usize,
    /// Niceness of the thread above its process's.
    pub niceness: u8,
}

/// The node's end of the plane.
#[derive(Debug)]
pub struct Plane {
    orders: Sender<PlaneCommand>,
    news: Receiver<PlaneEvent>,
    doorbell: Arc<OwnedFd>,
    node_doorbell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The plane's end of the same.
#[derive(Debug)]
struct NodeSide {
    orders: Receiver<PlaneCommand>,
    news: Sender<PlaneEvent>,
    doorbell: Arc<OwnedFd>,
    node_doorbell: Arc<OwnedFd>,
}

impl NodeSide {
    fn tell(&self, news: PlaneEvent) {
        // A node that is gone ends this thread with it.
        if self.news.send(news).is_ok() {
            ring(&self.node_doorbell);
        }
    }
}

fn ring(doorbell: &OwnedFd) {
    // A counter at its limit wakes the other side all the same.
    let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
}

fn silence(doorbell: &OwnedFd) {
    let _ = rustix::io::read(doorbell, &mut [0_u8; 8]);
}

fn watch(poller: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    epoll::add(poller, fd, EventData::new_u64(token), EventFlags::IN)?;
    Ok(())
}

impl Plane {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no descriptors or no thread.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(eventfd(0, flags)?);
        let node_doorbell = Arc::new(eventfd(0, flags)?);
        let (orders, order_receiver) = channel();
        let (event_sender, news) = channel();
        let side = NodeSide {
            orders: order_receiver,
            news: event_sender,
            doorbell: Arc::clone(&doorbell),
            node_doorbell: Arc::clone(&node_doorbell),
        };
        let plane = plane::PlaneThread::new(setup, side)?;
        let thread = std::thread::Builder::new()
            .name("broadleaf-data".to_owned())
            .spawn(move || plane.run())?;
        Ok(Self {
            orders,
            news,
            doorbell,
            node_doorbell,
            thread: Some(thread),
        })
    }

    /// Hands an order over.
    pub fn order(&self, order: PlaneCommand) {
        // The thread ends only after `Stop`; then nobody waits for what it would have done.
        let _ = self.orders.send(order);
        ring(&self.doorbell);
    }

    /// Everything that has happened since the last call.
    pub fn take_events(&self) -> Vec<PlaneEvent> {
        silence(&self.node_doorbell);
        self.news.try_iter().collect()
    }
}

impl AsFd for Plane {
    /// Readable while there is news.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node_doorbell.as_fd()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.order(PlaneCommand::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

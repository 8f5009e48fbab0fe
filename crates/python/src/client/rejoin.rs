//! How a client on another host gets back to the controller: a thread dials again, from when the connection broke until
//! the link goes on or is lost.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broadleaf_net::{Link, LinkError, Route, ask_to_resume};
use broadleaf_node::redial::{Attempt, Redial};
use broadleaf_proto::control::{Hello, Role};
use broadleaf_proto::resume::{Received, SessionKey};

use super::shared::{Incoming, Notice, Shared};
use crate::payload::lock;

/// After so many seconds without anything from the controller, the system finds out whether its host can be reached.
pub const IDLE_S: u64 = 1;
/// How long an attempt waits for an answer once it is connected, at least.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How to reach the controller again.
pub struct Rejoin {
    route: Route,
    hello: Hello,
    connect_ns: u64,
    /// How long it is tried.
    limit: Duration,
    /// Whether something at the controller's address forwards bytes to it, and may be started again.
    is_forwarded: bool,
}

enum Outcome {
    Connected(Box<Link>, Received),
    Failed(Attempt, LinkError),
    Lost(LinkError),
}

impl Rejoin {
    /// Of a client that has just connected by this route, in `connect_time`.
    pub fn new(
        route: Route,
        hello: &Hello,
        session: SessionKey,
        connect_time: Duration,
        limit: Duration,
        is_forwarded: bool,
    ) -> Self {
        Self {
            route,
            hello: Hello {
                role: Role::Resume { session },
                ..hello.clone()
            },
            connect_ns: u64::try_from(connect_time.as_nanos()).unwrap_or(u64::MAX),
            limit,
            is_forwarded,
        }
    }

    fn attempt(&self, connect_time: Duration) -> Outcome {
        let stream = match TcpStream::connect_timeout(&self.route.address, connect_time) {
            Ok(stream) => stream,
            Err(error) => {
                let attempt = match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => Attempt::NobodyListens,
                    _ => Attempt::Failed,
                };
                return Outcome::Failed(attempt, LinkError::Io(error));
            }
        };
        let deadline = Instant::now() + ANSWER_TIME.max(connect_time * 4);
        let asked = self.route.link(stream).map_err(LinkError::Io);
        match asked.and_then(|link| ask_to_resume(link, &self.hello, deadline)) {
            Ok((link, received)) => Outcome::Connected(Box::new(link), received),
            Err(error @ LinkError::Refused(_)) => Outcome::Lost(error),
            Err(error) => Outcome::Failed(Attempt::Failed, error),
        }
    }

    /// Dials until the link goes on or is lost; `tell` passes events to Python.
    fn run(&self, shared: &Shared, tell: &dyn Fn(Incoming)) {
        let begun = Instant::now();
        let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Where nobody listens the controller has ended, unless the way to it is what ended.
        let vacant_ns = if self.is_forwarded { u64::MAX } else { 0 };
        let mut redial = Redial::new(self.connect_ns, vacant_ns);
        redial.begin(now());
        let news = |kind: &'static str| Incoming {
            notices: vec![Notice {
                kind,
                body: "null".to_owned(),
            }],
            ..Incoming::default()
        };
        tell(news("link_broken"));
        let mut last = LinkError::Closed;
        while !shared.is_closed() {
            if let Some(at) = redial.next_tick() {
                std::thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
            }
            if !redial.on_tick(now()) {
                continue;
            }
            let is_lost;
            match self.attempt(Duration::from_nanos(redial.connect_ns())) {
                Outcome::Connected(link, theirs) => match shared.wire.resume(*link, theirs, IDLE_S)
                {
                    Ok(()) => {
                        shared.on_resumed();
                        tell(news("link_resumed"));
                        return;
                    }
                    Err(error @ LinkError::Decode(_)) => (last, is_lost) = (error, true),
                    Err(error) => {
                        last = error;
                        is_lost = redial.on_attempt(now(), Attempt::Failed);
                    }
                },
                Outcome::Failed(attempt, error) => {
                    if attempt != Attempt::NobodyListens {
                        last = error;
                    }
                    is_lost = redial.on_attempt(now(), attempt);
                }
                Outcome::Lost(error) => (last, is_lost) = (error, true),
            }
            if is_lost || begun.elapsed() > self.limit {
                break;
            }
        }
        let mut incoming = Incoming::default();
        shared.on_lost(&last, &mut incoming);
        if !incoming.is_empty() {
            tell(incoming);
        }
    }
}

/// Dials in a thread whenever the connection breaks; `tell` passes events to Python.
pub fn heal(shared: &Arc<Shared>, rejoin: Rejoin, tell: impl Fn(Incoming) + Send + Sync + 'static) {
    let (rejoin, tell) = (Arc::new(rejoin), Arc::new(tell));
    let weak = Arc::downgrade(shared);
    shared.wire.on_broken(move || {
        let Some(shared) = weak.upgrade() else { return };
        let (rejoin, tell, own) = (Arc::clone(&rejoin), Arc::clone(&tell), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("broadleaf-redial".to_owned());
        let redials = &mut *lock(&shared.redials);
        redials.retain(|thread| !thread.is_finished());
        // Without a thread nobody dials: the calls that wait end with their timeouts, or when the client is closed.
        redials.extend(thread.spawn(move || {
            own.on_suspended();
            rejoin.run(&own, &*tell);
        }));
    });
}

//! The engine's end of its host's lane: tasks that reach it without its socket, and its answers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use broadleaf_engine::{Arrived, LaneTask, Work};
use broadleaf_net::LinkError;
use broadleaf_proto::task::{AssignRecord, DoneRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{FrameKind, TaskKey};
use broadleaf_shm::{LETTER_BYTES, Lane};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::Engine;
use crate::payload::lock;

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

const SOCKET: u64 = 0;
const BELL: u64 = 1;

/// See the module.
pub(super) struct EngineLane {
    shared: Lane,
    /// The socket, and the bell, which is reported once each time that it rings.
    waits: OwnedFd,
    /// The poller forgets it with its last descriptor.
    _bell: OwnedFd,
    task: LaneTask,
}

impl EngineLane {
    /// From the descriptors that came with the welcome.
    pub fn new(descriptors: Vec<OwnedFd>, socket: &OwnedFd) -> PyResult<Self> {
        let Ok([memory, bell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(PyRuntimeError::new_err("the node's welcome has no lane"));
        };
        let shared =
            Lane::from_fd(&memory).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let (socket_data, bell_data) = (EventData::new_u64(SOCKET), EventData::new_u64(BELL));
        epoll::add(&waits, socket, socket_data, EventFlags::IN)
            .and_then(|()| epoll::add(&waits, &bell, bell_data, EventFlags::IN | EventFlags::ET))
            .map_err(std::io::Error::from)?;
        Ok(Self {
            shared,
            waits,
            _bell: bell,
            task: LaneTask::default(),
        })
    }

    /// For polling: readable once there is something to do. Call [`Engine::hear_bell`] after that.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.waits.as_fd()
    }

    /// Waits for something to do, or until this socket can be written; `None` if there was nothing for that long.
    ///
    /// Whoever gets something looks for it: the bell is not heard again.
    pub fn wait(&self, for_write: Option<&OwnedFd>, longest: Option<&Timespec>) -> Option<Arrived> {
        let Some(socket) = for_write else {
            return self.poll(longest);
        };
        let mut both = [
            PollFd::new(&self.waits, PollFlags::IN),
            PollFd::new(socket, PollFlags::OUT),
        ];
        let seen = rustix::event::poll(&mut both, longest) != Ok(0);
        (self.poll(Some(&NO_TIME)).is_some() || seen).then_some(Arrived::Frames)
    }

    fn poll(&self, longest: Option<&Timespec>) -> Option<Arrived> {
        let nothing = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(SOCKET),
        };
        let mut events = [nothing; 2];
        match epoll::wait(&self.waits, &mut events[..], longest) {
            Ok(0) => None,
            Ok(1) if events[0].data.u64() == BELL => Some(Arrived::Bell),
            // An interruption by a signal is a reason to check, not a failure.
            Ok(_) | Err(_) => Some(Arrived::Frames),
        }
    }
}

impl Engine {
    /// After [`EngineLane::as_fd`] was polled: what is on the lane is taken now, because the bell is not heard again.
    pub(super) fn hear_bell(&self) -> Result<(), LinkError> {
        self.lane.poll(Some(&NO_TIME));
        self.take_frames().map(drop)
    }

    /// Queues the task that is in this engine's place.
    pub(super) fn take_letter(&self, work: &mut Work) -> Result<(), LinkError> {
        if let Some(taken) = self.board.place().take_task() {
            let record = AssignRecord::decode(&mut Reader::new(taken.record.into()))?;
            self.lane.task.on_taken(record.key, taken.round);
            work.push(record);
        }
        Ok(())
    }

    /// Leaves the answer to a task that came over the lane in this engine's place. False if it has to be sent.
    pub(super) fn answer_on_lane(&self, record: &DoneRecord) -> bool {
        if !self.lane.task.is(record.key)
            || !record.payload.segments.is_empty()
            || record.payload.bytes.len() > LETTER_BYTES / 2
        {
            return false;
        }
        let mut body = Vec::with_capacity(LETTER_BYTES);
        record.encode(&mut body);
        let mut link = lock(&self.io.link);
        // What is queued comes before it.
        link.queued_bytes() == 0 && self.board.place().put_answer(link.mark(), &body)
    }

    /// A task has been answered or will not be. If it came over the lane, the node is woken if it waits for no other
    /// answer.
    pub(super) fn count_answer(&self, key: TaskKey) -> Result<(), LinkError> {
        let round = self.lane.task.on_over(key);
        if round.is_some_and(|round| self.lane.shared.count_answer(round)) {
            lock(&self.io.link).send(FrameKind::LaneAnswered, &[], &[])?;
            self.io.flush()?;
        }
        Ok(())
    }
}

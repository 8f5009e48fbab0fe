//! What the driver tells the controller, and what the controller asks the driver to do.

use broadleaf_proto::control::{
    ControlReply, ControlRequest, DefineOptions, EngineInfo, Event, ForkServerEvent, ReadWritten,
    RequestedTopology,
};
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::ids::{ClientId, EngineId, HostId, TaskKey};
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, OutputRecord, ResultRecord, SubmitRecord,
};
use broadleaf_proto::{CoalescedRecord, RefusedRun};

use bytes::Bytes;

use crate::Nanos;
use crate::engines::relayed::HostEvent;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A client was accepted.
    ClientUp {
        /// Its id, not used before.
        client: ClientId,
        /// Its name, for status.
        name: String,
    },
    /// A client's link closed.
    ClientDown {
        /// The client.
        client: ClientId,
    },
    /// A client defined a function.
    Function {
        /// The client.
        client: ClientId,
        /// The function under the client's own id.
        record: FunctionRecord,
    },
    /// A client defined a set of options.
    Options {
        /// The client.
        client: ClientId,
        /// The options under the client's own id.
        define: DefineOptions,
    },
    /// A client submitted a task (or one per target). Only queued until
    /// [`crate::Controller::schedule`].
    Submit {
        /// The client.
        client: ClientId,
        /// The task.
        record: SubmitRecord,
    },
    /// A client submitted tasks whose arguments were sent ahead and did not all arrive, or found no
    /// memory.
    SubmitIncomplete {
        /// The client.
        client: ClientId,
        /// The tasks, without their arguments.
        record: SubmitRecord,
        /// Why.
        reason: String,
    },
    /// A client's outgoing queue became long, or short again: while it is long none of its tasks
    /// is assigned.
    ClientCongested {
        /// The client.
        client: ClientId,
        /// Whether it is long.
        congested: bool,
    },
    /// A client's control request; see [`Output::Reply`] for those answered here.
    Request {
        /// The client.
        client: ClientId,
        /// The request's number, repeated by the reply.
        number: u64,
        /// The request.
        request: ControlRequest,
    },
    /// An observer looks at the hosts: their figures are asked for.
    Observed,
    /// The process that the cluster depends on is gone: the cluster stops.
    OwnerDown,
    /// A relay was accepted: a host that engines can be started on.
    HostUp {
        /// Its number, not used before.
        host: HostId,
        /// Its name; no host that is up has it.
        name: String,
        /// Engines it wants.
        n_engines: u32,
        /// Cores that these may use.
        n_cores: u32,
        /// Time until it ends by itself, with the batch job that it runs in.
        ends_in_ns: Option<Nanos>,
    },
    /// The link of a relay closed, or it has not answered for too long. No event of its engines
    /// comes after it.
    HostDown {
        /// The host.
        host: HostId,
    },
    /// A relay reported something about its engines. It counts only for engines of its host.
    Relay {
        /// Its host.
        host: HostId,
        /// What.
        news: HostEvent,
    },
    /// The fork server is ready.
    ForkServerUp,
    /// The fork server's link closed.
    ForkServerDown,
    /// An event from the fork server of the controller's host.
    ForkServer(ForkServerEvent),
    /// An engine of the controller's host said hello and was accepted. Its offers are numbered from 0.
    EngineUp {
        /// The engine.
        info: EngineInfo,
    },
    /// The link of an engine closed: the link of its latest `EngineUp`, reported after every `Done`
    /// it carried and after the answers to all `Revoke`s carried out on its board.
    EngineDown {
        /// The engine.
        engine: EngineId,
        /// Offers that were still unclaimed on its board, now taken back: they never started and never will.
        unclaimed_offers: Vec<u32>,
    },
    /// A task ended on an engine. An engine may hold it back for at most a few milliseconds while it runs the next
    /// task, whose timeout starts with it.
    Done {
        /// The engine.
        engine: EngineId,
        /// How it ended.
        record: DoneRecord,
        /// Its whole value inline, if that lies in segments, which the result store does not hold for a connected client.
        /// Boxed, because hardly any result has one, and every input is as large as the largest.
        copy: Option<Box<Bytes>>,
    },
    /// The arguments of an offered task, which are in segments, have arrived on its engine's host.
    Delivered {
        /// The engine.
        engine: EngineId,
        /// The task.
        key: TaskKey,
    },
    /// An offer was taken back for good, or a value given up, because payload could not be moved between hosts.
    Undeliverable {
        /// The engine.
        engine: EngineId,
        /// The task.
        key: TaskKey,
        /// For the user.
        reason: String,
    },
    /// A task waits for other tasks, or continues. Comes after every `Done` of tasks that ended before.
    Waits {
        /// The engine.
        engine: EngineId,
        /// Which.
        event: EngineEvent,
    },
    /// A task wrote something.
    Output {
        /// The engine.
        engine: EngineId,
        /// What; `task` holds a [`TaskKey`].
        record: OutputRecord,
    },
    /// The answer to [`Output::Revoke`].
    Revoked {
        /// The engine.
        engine: EngineId,
        /// The key of the `Revoke`.
        key: TaskKey,
        /// Whether the engine had not started it and now never will.
        won: bool,
    },
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a function to an engine; it replaces any function with that id. Comes before the first `Assign` that names
    /// it.
    Function {
        /// The engine.
        engine: EngineId,
        /// The function under its global id.
        record: FunctionRecord,
    },
    /// Offer a task to an engine: put it on the claim board, then send it.
    Assign {
        /// The engine.
        engine: EngineId,
        /// The task.
        record: AssignRecord,
        /// How its arguments reach the engine's host, if it is another host.
        topology: RequestedTopology,
    },
    /// Take an offer back from the claim board if the engine has not claimed it; answered by
    /// [`Input::Revoked`].
    Revoke {
        /// The engine.
        engine: EngineId,
        /// The task, repeated by the answer.
        key: TaskKey,
        /// Its offer.
        offer: u32,
    },
    /// Interrupt the engine, only if it is running this offer.
    Interrupt {
        /// The engine.
        engine: EngineId,
        /// The task.
        key: TaskKey,
        /// Its offer.
        offer: u32,
    },
    /// Send a signal to an engine's process.
    Kill {
        /// The engine.
        engine: EngineId,
        /// Its process.
        pid: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Ask an engine to leave when its current task is done.
    Stop {
        /// The engine.
        engine: EngineId,
    },
    /// Have the fork server start an engine for this slot.
    Spawn {
        /// The engine slot.
        engine: EngineId,
    },
    /// Have the fork server give a guest this slot.
    Seat {
        /// The engine slot.
        engine: EngineId,
        /// The guest's world.
        world: String,
        /// Its rank there.
        rank: u32,
    },
    /// Have the fork server of an engine's host read what the engine has written; answered by
    /// [`ForkServerEvent::Written`].
    ReadWritten(ReadWritten),
    /// Ask a relay for the figures of its host; answered by [`RelayEvent::Measured`](broadleaf_proto::relay::RelayEvent::Measured).
    Measure {
        /// The host.
        host: HostId,
    },
    /// Have the fork server end everything and exit.
    StopForkServer,
    /// Close the link of a relay that sent impossible reports; answered by [`Input::HostDown`].
    Expel {
        /// Its host.
        host: HostId,
    },
    /// Close the link of a relay that is no longer needed; answered by [`Input::HostDown`].
    Release {
        /// Its host.
        host: HostId,
    },
    /// A task of a client is resolved. There is exactly one for each task.
    Result {
        /// The client.
        client: ClientId,
        /// The result.
        record: ResultRecord,
    },
    /// Tasks of a client were never accepted. No other result follows.
    Refused {
        /// The client.
        client: ClientId,
        /// Which, and why.
        record: RefusedRun,
    },
    /// All tasks of a coalescing request are resolved. No other result follows.
    Coalesced {
        /// The client.
        client: ClientId,
        /// The results.
        record: CoalescedRecord,
    },
    /// A task of a client wrote something.
    ClientOutput {
        /// The client.
        client: ClientId,
        /// What; `task` holds a `TaskSeq`.
        record: OutputRecord,
    },
    /// Tell a client of an event.
    Event {
        /// The client.
        client: ClientId,
        /// The event.
        event: Event,
    },
    /// The answer to a request. The driver answers `Status`, `Trace`, `Watch`, `SetLog` and `Config` itself.
    Reply {
        /// The client.
        client: ClientId,
        /// The request's number.
        number: u64,
        /// The answer.
        reply: ControlReply,
    },
    /// Shutdown is complete.
    Finished,
}

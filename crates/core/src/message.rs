//! What the driver tells the controller, and what the controller asks the driver to do.

use broadleaf_proto::control::{
    ControlReply, ControlRequest, DefineOptions, Event, RequestedTopology,
};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{ClientId, EngineId, HostId};
use broadleaf_proto::relay::{Holdings, HostCounts};
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, OutputRecord, ResultRecord, SubmitRecord,
};
use broadleaf_proto::{CoalescedRecord, RefusedRun};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Nanos;
use crate::forms;
use crate::journal::{Fact, Members};

/// Something that happened. Its serialised form is that of [recordings](crate::recording): it has no contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A client was accepted.
    ClientUp {
        /// Its id, not used before.
        client: ClientId,
        /// Its name, for status.
        #[serde(serialize_with = "forms::text")]
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
        #[serde(with = "forms::FunctionForm")]
        record: FunctionRecord,
    },
    /// A client defined a set of options.
    Options {
        /// The client.
        client: ClientId,
        /// The options under the client's own id.
        #[serde(serialize_with = "forms::define")]
        define: DefineOptions,
    },
    /// A client submitted a task (or one per target). Only queued until
    /// [`crate::Controller::schedule`].
    Submit {
        /// The client.
        client: ClientId,
        /// The task.
        #[serde(with = "forms::SubmitForm")]
        record: SubmitRecord,
    },
    /// A client submitted tasks whose arguments were sent ahead and did not all arrive, or found no
    /// memory.
    SubmitIncomplete {
        /// The client.
        client: ClientId,
        /// The tasks, without their arguments.
        #[serde(with = "forms::SubmitForm")]
        record: SubmitRecord,
        /// Why.
        #[serde(serialize_with = "forms::text")]
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
        #[serde(serialize_with = "forms::request")]
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
    /// The first input of a controller that was started again: its predecessor's hosts, which are away.
    Restored {
        /// The hosts.
        members: Members,
    },
    /// A host from the time of an earlier controller is back; [`Self::HostBack`] follows.
    HostRejoined {
        /// The host.
        host: HostId,
        /// What it has.
        #[serde(serialize_with = "forms::holdings")]
        holdings: Holdings,
    },
    /// A relay does not answer, or the connection to it broke; it may come back.
    HostAway {
        /// The host.
        host: HostId,
    },
    /// A relay that was away answers again.
    HostBack {
        /// The host.
        host: HostId,
    },
    /// The link of a relay closed, or it has not answered for too long. No event of its engines
    /// comes after it.
    HostDown {
        /// The host.
        host: HostId,
    },
    /// The fork server of the controller's host is ready.
    ForkServerUp,
    /// The link of that fork server closed.
    ForkServerDown,
    /// A relay's host was told that it will be ended.
    HostEnds {
        /// The host.
        host: HostId,
        /// The time that it has left.
        ends_in_ns: Nanos,
    },
    /// A relay answered [`Output::Measure`].
    Measured {
        /// Its host.
        host: HostId,
        /// The figures.
        counts: HostCounts,
    },
    /// A host reported something about its engines. It counts only for engines of that host.
    Report {
        /// The host; the controller's own is [`HostId::CONTROLLER`].
        host: HostId,
        /// What.
        #[serde(serialize_with = "forms::report")]
        report: EngineReport,
    },
    /// A task ended on an engine. An engine may hold it back for at most a few milliseconds while it runs the next
    /// task, whose timeout starts with it.
    Done {
        /// The host that reports it.
        host: HostId,
        /// The engine.
        engine: EngineId,
        /// How it ended.
        #[serde(with = "forms::DoneForm")]
        record: DoneRecord,
        /// Its whole value inline, if that lies in segments, which the result store does not hold for a connected client.
        /// Boxed, because hardly any result has one, and every input is as large as the largest.
        #[serde(with = "forms::copy")]
        copy: Option<Box<Bytes>>,
    },
    /// A task wrote something.
    Output {
        /// The host that reports it.
        host: HostId,
        /// The engine.
        engine: EngineId,
        /// What; `task` holds a [`TaskKey`](broadleaf_proto::TaskKey).
        #[serde(with = "forms::OutputForm")]
        record: OutputRecord,
    },
}

/// Something to do. Its serialised form is that of [recordings](crate::recording): it has no contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Send a function to an engine; it replaces any function with that id. Comes before the first `Assign` that names
    /// it.
    Function {
        /// The engine.
        engine: EngineId,
        /// The function under its global id.
        #[serde(serialize_with = "forms::sent_function")]
        record: FunctionRecord,
    },
    /// Offer a task to an engine: put it on the claim board, then send it.
    Assign {
        /// The engine.
        engine: EngineId,
        /// The task.
        #[serde(with = "forms::AssignForm")]
        record: AssignRecord,
        /// How its arguments reach the engine's host, if it is another host.
        topology: RequestedTopology,
    },
    /// Anything else for an engine, or for its slot: whoever is its host carries it out.
    Order(EngineOrder),
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
        #[serde(serialize_with = "forms::result")]
        record: ResultRecord,
    },
    /// Tasks of a client were never accepted. No other result follows.
    Refused {
        /// The client.
        client: ClientId,
        /// Which, and why.
        #[serde(serialize_with = "forms::refused")]
        record: RefusedRun,
    },
    /// All tasks of a coalescing request are resolved. No other result follows.
    Coalesced {
        /// The client.
        client: ClientId,
        /// The results.
        #[serde(serialize_with = "forms::coalesced")]
        record: CoalescedRecord,
    },
    /// A task of a client wrote something.
    ClientOutput {
        /// The client.
        client: ClientId,
        /// What; `task` holds a `TaskSeq`.
        #[serde(with = "forms::OutputForm")]
        record: OutputRecord,
    },
    /// Tell a client of an event.
    Event {
        /// The client.
        client: ClientId,
        /// The event.
        #[serde(serialize_with = "forms::event")]
        event: Event,
    },
    /// The answer to a request. The driver answers `Status`, `Trace`, `Watch`, `SetLog`, `Recording`, `Recorded` and
    /// `Config` itself.
    Reply {
        /// The client.
        client: ClientId,
        /// The request's number.
        number: u64,
        /// The answer.
        #[serde(serialize_with = "forms::reply")]
        reply: ControlReply,
    },
    /// A later controller has to know this; only with [`Config::journal`](crate::Config::journal).
    Note(Fact),
    /// Shutdown is complete.
    Finished,
}

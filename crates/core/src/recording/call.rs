//! The calls that change a machine.

use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, FunctionId, HostId};
use broadleaf_proto::task::{AssignRecord, DoneRecord, FunctionRecord, OutputRecord};
use serde::{Deserialize, Serialize};

use crate::Input;
use crate::forms;
use crate::relay::{Arguments, Board};

/// One call of any machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// [`Controller::on_input`](crate::Controller::on_input).
    Input(Input),
    /// [`Controller::on_deadline`](crate::Controller::on_deadline).
    Deadline,
    /// [`Controller::schedule`](crate::Controller::schedule).
    Schedule,
    /// [`Controller::take_freed_functions`](crate::Controller::take_freed_functions).
    TakeFreedFunctions,
    /// Of [`Returning`](crate::returning::Returning).
    Returning(ReturningCall),
    /// Of [`Relay`](crate::relay::Relay).
    Relay(RelayCall),
}

/// A call of [`Returning`](crate::returning::Returning): its methods, and what they asked the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "they are the arguments of the methods")]
pub enum ReturningCall {
    OnDone {
        host: HostId,
        engine: EngineId,
        #[serde(with = "forms::DoneForm")]
        record: DoneRecord,
    },
    OnReport {
        host: HostId,
        #[serde(serialize_with = "forms::report")]
        report: EngineReport,
    },
    OnObjects,
    OnHostDown {
        host: HostId,
    },
}

/// A call of [`Relay`](crate::relay::Relay): its methods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "they are the arguments of the methods")]
pub enum RelayCall {
    OutliveController,
    OnRestarted {
        boards: Vec<Board>,
    },
    OnFunction {
        #[serde(with = "forms::FunctionForm")]
        record: FunctionRecord,
    },
    ForgetFunctions {
        ids: Vec<FunctionId>,
    },
    OnOrder {
        order: EngineOrder,
    },
    OnReport {
        #[serde(serialize_with = "forms::report")]
        report: EngineReport,
    },
    OnForkServerUp,
    OnForkServerDown,
    Leave,
    OnOffered {
        engine: EngineId,
        #[serde(with = "forms::AssignForm")]
        record: AssignRecord,
        arguments: Arguments,
    },
    OnObjects,
    OnOutput {
        engine: EngineId,
        task: u64,
        #[serde(with = "forms::output")]
        record: Option<OutputRecord>,
        is_congested: bool,
    },
}

//! What the controller orders the host of an engine to do, and what a host reports about its engines.
//!
//! The words are the same for every host: the controller's own node carries an order out, and a link to a relay carries
//! it as it is. Functions, tasks, their ends and their output are records of their own.

use serde::{Deserialize, Serialize};

use crate::ids::{EngineId, TaskKey};
use crate::limits::CLAIM_SLOTS;
use crate::messages::control::{EngineInfo, ForkServerEvent, ForkServerOrder};
use crate::messages::engine::EngineEvent;
use crate::wire::at_most;

/// To the host of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineOrder {
    /// Take an offer back from the claim board if the engine has not claimed it; answered by
    /// [`EngineReport::Revoked`].
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
    /// For the fork server.
    ForkServer(ForkServerOrder),
}

impl EngineOrder {
    /// The engine, or its slot.
    pub fn engine(&self) -> EngineId {
        match self {
            Self::Revoke { engine, .. }
            | Self::Interrupt { engine, .. }
            | Self::Kill { engine, .. }
            | Self::Stop { engine } => *engine,
            Self::ForkServer(order) => order.engine(),
        }
    }
}

/// From the host of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineReport {
    /// An engine said hello and was accepted. Its offers are numbered from 0.
    Up(EngineInfo),
    /// The link of an engine closed: the link of its latest `Up`, reported after the end of every task that it carried and
    /// after the answers to all revokes carried out on its board.
    Down {
        /// The engine.
        engine: EngineId,
        /// Offers that were still unclaimed on its board, now taken back: they never started and never will.
        #[serde(deserialize_with = "at_most::<_, _, CLAIM_SLOTS>")]
        unclaimed_offers: Vec<u32>,
        /// The number after the last offer that reached its board.
        next_offer: u32,
    },
    /// The answer to [`EngineOrder::Revoke`].
    Revoked {
        /// The engine.
        engine: EngineId,
        /// The key of the revoke.
        key: TaskKey,
        /// Whether the engine had not started it, and now never will.
        won: bool,
    },
    /// A task waits for other tasks, or continues. Comes after the end of every task that ended before.
    Waits {
        /// The engine.
        engine: EngineId,
        /// Which.
        event: EngineEvent,
    },
    /// The arguments of an offered task, which had to come from another host, have arrived.
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
    /// An event from the fork server of the host.
    ForkServer(ForkServerEvent),
}

impl EngineReport {
    /// The engine, or its slot; a guest has none yet, and an answer to an observer names its request.
    pub fn engine(&self) -> Option<EngineId> {
        match self {
            Self::Up(info) => Some(info.engine),
            Self::Down { engine, .. }
            | Self::Revoked { engine, .. }
            | Self::Waits { engine, .. }
            | Self::Delivered { engine, .. }
            | Self::Undeliverable { engine, .. } => Some(*engine),
            Self::ForkServer(event) => event.engine(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;
    use crate::messages::control::{ReadWritten, decode, encode};

    #[test]
    fn a_host_lists_no_more_offers_than_a_board_has() {
        let down = |n| {
            encode(&EngineReport::Down {
                engine: EngineId(1),
                unclaimed_offers: vec![7; n],
                next_offer: 0,
            })
        };
        assert!(decode::<EngineReport>(&down(CLAIM_SLOTS)).is_ok());
        assert!(decode::<EngineReport>(&down(CLAIM_SLOTS + 1)).is_err());
    }

    #[test]
    fn every_order_names_its_engine() {
        let engine = EngineId(3);
        let (key, offer) = (TaskKey(1 << 40), 7);
        let orders = [
            EngineOrder::Revoke { engine, key, offer },
            EngineOrder::Interrupt { engine, key, offer },
            EngineOrder::Kill {
                engine,
                pid: 12,
                signal: 9,
            },
            EngineOrder::Stop { engine },
            EngineOrder::ForkServer(ForkServerOrder::Spawn { engine }),
            EngineOrder::ForkServer(ForkServerOrder::Seat {
                engine,
                world: "w".into(),
                rank: 2,
            }),
            EngineOrder::ForkServer(ForkServerOrder::ReadWritten(ReadWritten {
                engine,
                pid: 12,
                reading: 5,
                seen: None,
            })),
        ];
        for order in orders {
            assert_eq!(order.engine(), engine);
            assert_eq!(decode::<EngineOrder>(&encode(&order)).unwrap(), order);
        }
    }
}

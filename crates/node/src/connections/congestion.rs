//! Peers that do not read what they requested or were sent.

use broadleaf_core::Input;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connections::peers::Role;
use crate::node::Node;

impl Node {
    /// Has the poller watch a peer for whatever the node waits for. While a client does not read
    /// its answers, nothing is read from it: answers to further requests could not be sent either.
    pub(crate) fn watch_peer(&mut self, token: usize, watches_write: bool) {
        let Some(peer) = self.peers.get_mut(token) else {
            return;
        };
        let is_congested = matches!(
            peer.role,
            Role::Client {
                congested: true,
                ..
            }
        );
        if (peer.watches_write, peer.watches_read) == (watches_write, !is_congested) {
            return;
        }
        peer.watches_write = watches_write;
        peer.watches_read = !is_congested;
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, peer.watches_read);
        flags.set(EventFlags::OUT, peer.watches_write);
        let data = EventData::new_u64(token as u64);
        // This can only fail for a descriptor that is not registered, and this one is.
        let _ = epoll::modify(&self.poller, peer.link.as_fd(), data, flags);
    }

    /// Number of bytes in the queues to engines, and to relays for their engines.
    pub(crate) fn queued_for_engines_bytes(&self) -> u64 {
        let links = self.peers.iter().filter_map(|(_, peer)| {
            let is_theirs = matches!(peer.role, Role::Engine { .. } | Role::Relay { .. });
            is_theirs.then(|| peer.link.queued_bytes() as u64)
        });
        links.sum()
    }

    /// Number of bytes that engines have not read: in the queues here, and in those of the relays. If one relay was
    /// given more than that since its last report, that number instead.
    pub(crate) fn unread_by_engines_bytes(&self) -> u64 {
        let relays = || self.relays.links.values().map(|link| &link.given);
        let queued_bytes = self.queued_for_engines_bytes();
        let unread_bytes = relays().fold(queued_bytes, |sum, given| {
            sum.saturating_add(given.unread_bytes())
        });
        relays().fold(unread_bytes, |bytes, given| {
            bytes.max(given.on_the_way_bytes())
        })
    }

    /// Tells the controller when a client's queue of answers becomes long, or short again.
    pub(crate) fn note_congestion(&mut self, token: usize) {
        let limit = self.config.options.congestion_bytes;
        let peer = &mut self.peers[token];
        let queued = peer.link.queued_bytes();
        if let Role::Client {
            client, congested, ..
        } = &mut peer.role
        {
            let now_congested = if *congested {
                queued > limit / 2
            } else {
                queued > limit
            };
            if now_congested != *congested {
                *congested = now_congested;
                let client = *client;
                self.input(Input::ClientCongested {
                    client,
                    congested: now_congested,
                });
                self.carry_out();
            }
        }
    }
}

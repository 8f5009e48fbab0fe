//! Decides over how many connections a host gets payload from another.
//!
//! One connection has at most as much under way as the sending kernel lets its buffer grow. Where bandwidth times round
//! trip is more, the link is idle in between. So on links with a long round trip the number of connections is doubled
//! as long as that brings more bytes a second, and remembered for the next transfer. Where more than one is needed,
//! twice as many are used: others carry on while one waits. This is a pure machine, one in each host's payload plane.

use std::collections::BTreeMap;

use broadleaf_proto::ids::HostId;
use broadleaf_proto::limits::MAX_PAYLOAD_STREAMS;

use super::cost::is_short;
use crate::Nanos;

/// Maximum number of connections that is chosen automatically.
pub const MAX_AUTOMATIC: usize = 8;
/// Factor by which twice as many connections must be faster.
const GAIN: f64 = 1.1;
/// Two rates in sequence that differ by less than this share are steady: the connections no longer start slowly.
const STEADY: f64 = 0.1;
/// A rate is measured over this many round trips, but not less than `MIN_WINDOW_NS`.
const WINDOW_TRIPS: u64 = 4;
const MIN_WINDOW_NS: Nanos = 100_000_000;
/// After this many rates without steady ones, the last two decide.
const MAX_WINDOWS: u32 = 10;
/// How long a number that was found is used before it is looked for again.
const SETTLED_NS: Nanos = 300_000_000_000;
/// Minimum number of bytes for each connection: fewer arrive before another connection has got up to speed.
const MIN_STREAM_BYTES: u64 = 1024 * 1024;

/// What is known of the link from another host.
#[derive(Debug)]
struct Edge {
    n: usize,
    /// Bytes a second with half as many, if that was measured.
    rate_before: Option<f64>,
    /// When the current measurement began, and the bytes that have come since.
    window: Option<(Nanos, u64)>,
    rate: Option<f64>,
    n_windows: u32,
    settled_ns: Option<Nanos>,
}

impl Edge {
    fn starting_with(n: usize) -> Self {
        Self {
            n,
            rate_before: None,
            window: None,
            rate: None,
            n_windows: 0,
            settled_ns: None,
        }
    }

    /// Starts to measure anew, with the same number.
    fn restart(&mut self) {
        self.window = None;
        self.rate = None;
        self.n_windows = 0;
    }

    /// A rate was measured with this number.
    fn on_rate(&mut self, now: Nanos, rate: f64) {
        let is_faster = self.rate_before.is_none_or(|before| rate >= before * GAIN);
        if is_faster && self.n < MAX_AUTOMATIC {
            self.rate_before = Some(rate);
            self.n *= 2;
        } else {
            if !is_faster && self.n == 2 {
                self.n = 1;
            }
            self.settled_ns = Some(now);
        }
        self.restart();
    }
}

/// See the module.
#[derive(Debug)]
pub struct Streams {
    /// The number for all links; `None` to find it.
    fixed: Option<usize>,
    edges: BTreeMap<HostId, Edge>,
}

impl Streams {
    /// With this many connections for each link; 0 to find the number.
    pub fn new(n: usize) -> Self {
        Self {
            fixed: (n > 0).then_some(n.min(MAX_PAYLOAD_STREAMS)),
            edges: BTreeMap::new(),
        }
    }

    /// Over how many connections to get payload from a host, at least 1.
    pub fn number(&self, host: HostId) -> usize {
        let found = || self.edges.get(&host).map_or(1, |edge| edge.n);
        self.fixed.unwrap_or_else(found)
    }

    /// As [`Streams::number`], for a transfer of which so much has not arrived.
    pub fn number_for(&self, host: HostId, missing_bytes: u64) -> usize {
        let n = usize::try_from(missing_bytes / MIN_STREAM_BYTES).unwrap_or(usize::MAX);
        let worthwhile = if self.fixed.is_some() {
            usize::MAX
        } else {
            n.max(1)
        };
        self.number(host).min(worthwhile)
    }

    /// So many bytes have come from a host since the last call; to be called several times a second while it sends
    /// payload. Without a measured round trip, `round_trip_ns` is 0.
    pub fn on_received(&mut self, now: Nanos, host: HostId, round_trip_ns: u64, bytes: u64) {
        if self.fixed.is_some() {
            return;
        }
        if is_short(round_trip_ns) {
            self.edges.remove(&host);
            return;
        }
        let edge = self.edges.entry(host);
        let edge = edge.or_insert_with(|| Edge::starting_with(1));
        if let Some(settled_ns) = edge.settled_ns {
            if now.saturating_sub(settled_ns) < SETTLED_NS {
                return;
            }
            // Of those that are not spare, half may be enough by now.
            *edge = Edge::starting_with((edge.n / 4).max(1));
        }
        let Some((since_ns, received_bytes)) = &mut edge.window else {
            edge.window = Some((now, 0));
            return;
        };
        *received_bytes += bytes;
        let took_ns = now.saturating_sub(*since_ns);
        if took_ns < MIN_WINDOW_NS.max(round_trip_ns.saturating_mul(WINDOW_TRIPS)) {
            return;
        }
        let rate = *received_bytes as f64 * 1e9 / took_ns as f64;
        edge.window = Some((now, 0));
        edge.n_windows += 1;
        let Some(before) = edge.rate.replace(rate) else {
            return;
        };
        let is_steady = (rate - before).abs() < STEADY * before;
        if is_steady || edge.n_windows >= MAX_WINDOWS && rate + before > 0.0 {
            edge.on_rate(now, f64::midpoint(rate, before));
        }
    }

    /// No payload is on its way from a host: what is being measured would say nothing.
    pub fn on_idle(&mut self, host: HostId) {
        if let Some(edge) = self.edges.get_mut(&host) {
            edge.restart();
        }
    }

    /// There is no connection to a host any more.
    pub fn forget(&mut self, host: HostId) {
        self.edges.remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(3);
    const TICK_NS: Nanos = 50_000_000;
    const LONG_NS: u64 = 20_000_000;

    /// A link where connections start slowly and each carries a limited rate, in kB/s.
    struct Link {
        streams: Streams,
        now: Nanos,
        highest: u64,
        highest_each: u64,
        rate: u64,
        max_n: usize,
    }

    impl Link {
        fn new(highest: u64, highest_each: u64) -> Self {
            Self {
                streams: Streams::new(0),
                now: 0,
                highest,
                highest_each,
                rate: 1000,
                max_n: 1,
            }
        }

        fn run(&mut self, seconds: u64, round_trip_ns: u64) -> usize {
            for tick in 0..seconds * 20 {
                let n = self.streams.number(HOST);
                self.max_n = self.max_n.max(n);
                let highest = self.highest.min(self.highest_each * n as u64);
                self.rate = (self.rate * 2).min(highest);
                // Rates are never quite the same.
                let noise = if tick % 2 == 0 { 97 } else { 103 };
                let bytes = self.rate * 50 * noise / 100;
                self.now += TICK_NS;
                let streams = &mut self.streams;
                streams.on_received(self.now, HOST, round_trip_ns, bytes);
            }
            self.streams.number(HOST)
        }
    }

    #[test]
    fn connections_are_added_until_the_link_is_full_and_some_are_spare() {
        for (highest_each, n) in [(30_000, 1), (13_000, 4), (7000, 8), (4000, 8), (500, 8)] {
            let mut link = Link::new(25_000, highest_each);
            assert_eq!(link.run(5, LONG_NS), n, "{highest_each} kB/s each");
            assert!(link.max_n <= n.max(2));
        }
    }

    #[test]
    fn what_was_found_is_kept_for_minutes_and_then_looked_for_again() {
        let mut link = Link::new(25_000, 13_000);
        link.run(5, LONG_NS);
        link.highest_each = 30_000;
        link.max_n = 1;
        assert_eq!(link.run(290, LONG_NS), 4);
        assert_eq!(link.max_n, 4, "nothing is tried meanwhile");
        assert_eq!(link.run(20, LONG_NS), 1);
        link.highest_each = 7000;
        assert_eq!(link.run(310, LONG_NS), 8);
    }

    #[test]
    fn a_short_link_has_one() {
        for round_trip_ns in [0, 100_000, 2_000_000] {
            let mut link = Link::new(1_000_000, 7000);
            assert_eq!(link.run(5, round_trip_ns), 1);
            assert_eq!(link.max_n, 1);
        }
    }

    #[test]
    fn pauses_are_not_measured() {
        let mut link = Link::new(25_000, 13_000);
        for _ in 0..40 {
            link.run(1, LONG_NS);
            link.now += 7 * TICK_NS;
            link.streams.on_idle(HOST);
        }
        assert_eq!(link.streams.number(HOST), 4);
    }

    #[test]
    fn nothing_is_decided_while_nothing_comes() {
        let mut link = Link::new(0, 13_000);
        assert_eq!(link.run(20, LONG_NS), 1);
        assert_eq!(link.max_n, 1);
    }

    #[test]
    fn a_number_that_was_found_is_used_where_there_is_enough_to_send() {
        let mut link = Link::new(25_000, 7000);
        link.run(5, LONG_NS);
        let number_for = |missing_bytes| link.streams.number_for(HOST, missing_bytes);
        assert_eq!([100 << 20, 3 << 20, 100].map(number_for), [8, 3, 1]);
    }

    #[test]
    fn a_given_number_is_used_everywhere() {
        let mut streams = Streams::new(4);
        for tick in 0..100 {
            streams.on_received(tick * TICK_NS, HOST, LONG_NS, 1 << 20);
        }
        assert_eq!(streams.number_for(HOST, 100), 4);
        assert_eq!(Streams::new(1000).number(HOST), MAX_PAYLOAD_STREAMS);
    }
}

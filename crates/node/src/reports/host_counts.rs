//! What a host tells observers: what its kernel has counted of processors, memory and network.

use std::fs::read_to_string;

use broadleaf_proto::EngineId;
use broadleaf_proto::relay::{HostCounts, RelayEvent};

use crate::connections::peers::Role;
use crate::node::Node;

impl Node {
    /// Answers its controller.
    pub(crate) fn on_measure(&mut self) {
        let engines = self.peers.iter().filter_map(|(_, peer)| match peer.role {
            Role::Engine { engine, pid, .. } => Some((engine, resident_bytes(pid)?)),
            _ => None,
        });
        let engines = engines.collect();
        let at_ns = self.epoch.elapsed().as_nanos() as u64;
        self.tell_controller(&RelayEvent::Measured(counts(at_ns, engines)));
    }
}

fn counts(at_ns: u64, engines: Vec<(EngineId, u64)>) -> HostCounts {
    let read = |path| read_to_string(path).unwrap_or_default();
    let stat = read("/proc/stat");
    let (idle_ticks, all_ticks) = processor_ticks(&stat, "cpu").unwrap_or_default();
    let memory = read("/proc/meminfo");
    let (in_bytes, out_bytes) = network(&read("/proc/net/dev"));
    HostCounts {
        at_ns,
        cores: cores(&stat),
        busy_ticks: all_ticks.saturating_sub(idle_ticks),
        all_ticks,
        free_bytes: memory_bytes(&memory, "MemAvailable:").unwrap_or_default(),
        total_bytes: memory_bytes(&memory, "MemTotal:").unwrap_or_default(),
        in_bytes,
        out_bytes,
        engines,
    }
}

/// Idle ticks of a processor (`cpu0`, or `cpu` for all together), and all its ticks: `proc_stat(5)`.
pub(crate) fn processor_ticks(stat: &str, processor: &str) -> Option<(u64, u64)> {
    let mut lines = stat.lines().map(str::split_whitespace);
    let fields = lines.find_map(|mut fields| (fields.next()? == processor).then_some(fields))?;
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    // User, nice, system, idle, I/O wait, interrupts, soft interrupts, stolen; guest time is part
    // of user and nice.
    let [_, _, _, idle, waiting, ..] = ticks[..] else {
        return None;
    };
    Some((idle + waiting, ticks.iter().take(8).sum()))
}

fn cores(stat: &str) -> u32 {
    let lines = stat.lines().skip(1);
    lines.take_while(|line| line.starts_with("cpu")).count() as u32
}

/// A line of `proc_meminfo(5)`.
fn memory_bytes(text: &str, name: &str) -> Option<u64> {
    let fields = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = fields.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes received and sent, except by the interface of the host to itself: `proc_pid_net(5)`.
fn network(text: &str) -> (u64, u64) {
    let mut total = (0, 0);
    for line in text.lines().skip(2) {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        let counts: Vec<u64> = counts
            .split_whitespace()
            .map_while(|n| n.parse().ok())
            .collect();
        if let (Some(received), Some(sent), true) =
            (counts.first(), counts.get(8), name.trim() != "lo")
        {
            total = (total.0 + received, total.1 + sent);
        }
    }
    total
}

/// What a process has in memory: `proc_pid_statm(5)`.
fn resident_bytes(pid: u32) -> Option<u64> {
    let text = read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_tells_is_understood() {
        let stat = "cpu  10 1 5 80 4 2 1 1 3 0\ncpu0 5 0 3 40 2 1 1 1 3 0\ncpu1 5 1 2 40 2 1 0 0 0 0\nintr 5\n";
        assert_eq!(processor_ticks(stat, "cpu"), Some((84, 104)));
        assert_eq!(cores(stat), 2);
        assert_eq!(processor_ticks("cpu  1 2", "cpu"), None);
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu10 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        assert_eq!(processor_ticks(stat, "cpu0"), Some((45, 72)));
        assert_eq!(processor_ticks(stat, "cpu10"), Some((2, 8)));
        assert_eq!(processor_ticks(stat, "cpu1"), None);
        let memory = "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\n";
        assert_eq!(memory_bytes(memory, "MemTotal:"), Some(2 << 20));
        assert_eq!(memory_bytes(memory, "MemAvailable:"), Some(512 << 10));
        assert_eq!(memory_bytes("", "MemTotal:"), None);
        let dev = "Inter-| Receive\n face |bytes\n    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\n  eth1: 5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n";
        assert_eq!(network(dev), (105, 36));
        assert_eq!(network("garbage"), (0, 0));
    }

    #[test]
    fn this_host_tells_what_it_has() {
        let own = resident_bytes(std::process::id()).unwrap();
        assert!(own > 100_000);
        let told = counts(5, vec![(EngineId(1), own)]);
        assert!(told.cores > 0 && told.all_ticks >= told.busy_ticks);
        assert!(told.free_bytes > 0 && told.free_bytes <= told.total_bytes);
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}

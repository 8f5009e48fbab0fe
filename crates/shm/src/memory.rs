//! How much memory is available, whether it is short, and giving it back.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::platform;

/// Memory this process may expect to get, in bytes: the host's available memory, or its control group's limit (version
/// 1 or 2, any ancestor) where that is less. `u64::MAX` if neither is known.
pub fn memory_limit_bytes() -> u64 {
    platform::memory_limit_bytes()
}

/// Reads a file by its path; `None` when it cannot be read.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The limit from the files of `/proc` and `/sys/fs/cgroup`.
pub(crate) fn limit_bytes(read: Read) -> u64 {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let host_bytes = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    groups(&read("/proc/self/cgroup").unwrap_or_default())
        .filter_map(|(files, dir)| read(&format!("{dir}/{}", files.limit)))
        .filter_map(|text| text.trim().parse().ok())
        .fold(host_bytes, u64::min)
}

/// What is left of the host's memory and of each control group's limit, after subtracting current usage except file
/// pages, which the kernel can reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The minimum left in any of them.
    pub left_bytes: u64,
    /// Whether one of them has so little left that free memory should be released: a group less than a quarter of its
    /// limit, because then the kernel kills; the host less than an eighth of its memory.
    pub is_short: bool,
}

/// See [`Room`].
pub(crate) fn room(read: Read) -> Room {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let total_bytes = meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(0);
    let left_bytes = meminfo_bytes(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    let mut room = Room {
        left_bytes,
        is_short: left_bytes < total_bytes / 8,
    };
    for (files, dir) in groups(&read("/proc/self/cgroup").unwrap_or_default()) {
        if let Some((left_bytes, limit_bytes)) = left_of_group(read, files, &dir) {
            room.left_bytes = room.left_bytes.min(left_bytes);
            room.is_short |= left_bytes < limit_bytes / 4;
        }
    }
    room
}

/// How often control groups reached their limits, and how long their processes waited for memory:
/// both only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strain {
    /// Number of times that usage was above `memory.high` or reached `memory.max`.
    pub limit_hits: u64,
    /// How long some process of the group, or else of the host, stalled because memory was short.
    pub stalled_us: u64,
}

/// See [`Strain`].
pub(crate) fn strain(read: Read) -> Strain {
    let groups: Vec<_> = groups(&read("/proc/self/cgroup").unwrap_or_default()).collect();
    let hits = groups.iter().filter_map(|(files, dir)| {
        let text = read(&format!("{dir}/{}", files.hits))?;
        let fields = text.lines().filter_map(|line| match line.split_once(' ') {
            Some(("high" | "max" | "oom", count)) => Some(count),
            Some(_) => None,
            None => Some(line),
        });
        Some(fields.filter_map(|n| n.trim().parse::<u64>().ok()).sum())
    });
    let of_group = groups
        .iter()
        .find_map(|(_, dir)| stalled_us(&read(&format!("{dir}/memory.pressure"))?));
    Strain {
        limit_hits: hits.fold(0, u64::saturating_add),
        stalled_us: of_group
            .or_else(|| stalled_us(&read("/proc/pressure/memory")?))
            .unwrap_or(0),
    }
}

/// The total of the line `some` of a file of pressure stall information.
fn stalled_us(pressure: &str) -> Option<u64> {
    let line = pressure.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

fn left_of_group(read: Read, files: &GroupFiles, dir: &str) -> Option<(u64, u64)> {
    let number = |file| read(&format!("{dir}/{file}"))?.trim().parse::<u64>().ok();
    let limit_bytes = number(files.limit)?;
    let left_bytes = limit_bytes.saturating_sub(number(files.usage)?);
    let stat = read(&format!("{dir}/memory.stat")).unwrap_or_default();
    let fields = stat.lines().filter_map(|line| line.split_once(' '));
    let reclaimable = fields.filter(|(name, _)| files.reclaimable.contains(name));
    let bytes = reclaimable.filter_map(|(_, value)| value.trim().parse::<u64>().ok());
    Some((
        bytes.fold(left_bytes, u64::saturating_add).min(limit_bytes),
        limit_bytes,
    ))
}

/// The control groups that can limit this process's memory, each with its directory.
fn groups(cgroup: &str) -> impl Iterator<Item = (&'static GroupFiles, String)> {
    cgroup
        .lines()
        .filter_map(group_of)
        .flat_map(|(files, path)| ancestors(path).map(move |dir| (files, dir)))
        .map(|(files, dir)| (files, format!("{}{dir}", files.mount)))
}

/// Where each version of control groups keeps its figures.
struct GroupFiles {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    hits: &'static str,
    reclaimable: [&'static str; 2],
}

const VERSION_1: GroupFiles = GroupFiles {
    mount: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    hits: "memory.failcnt",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: GroupFiles = GroupFiles {
    mount: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    hits: "memory.events",
    reclaimable: ["inactive_file", "active_file"],
};

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The files and the path of a line of `/proc/self/cgroup` that can limit memory.
fn group_of(line: &str) -> Option<(&'static GroupFiles, &str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    if controllers.is_empty() {
        Some((&VERSION_2, path))
    } else if controllers.split(',').any(|name| name == "memory") {
        Some((&VERSION_1, path))
    } else {
        None
    }
}

/// The path and every directory above it; the root, where a container sees its own limit, is "".
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    std::iter::successors(Some(path), |dir| dir.rfind('/').map(|end| &dir[..end]))
}

// Whether memory is short, so that free memory should be released instead of kept warm.

/// How old the information may be: looking takes longer than copying 100 kB.
const FRESH: Duration = Duration::from_millis(200);
/// One process keeps at most one part in this many of the remaining memory warm: other processes do the same.
const WARM_SHARE: u64 = 8;
/// How long observed pressure counts, so that everyone who looks once a second notices it.
const NOTICE: Duration = Duration::from_millis(1500);
/// Stalling on memory for one part in this many of the time is pressure.
const STALLED_SHARE: u32 = 10;

/// Time between two checks while waiting for memory.
const ASK_PERIOD: Duration = Duration::from_millis(20);

struct Watch {
    room: Room,
    looked_at: Instant,
    strain: Strain,
    strain_at: Instant,
    pressed_at: Option<Instant>,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

fn with_watch<R>(use_it: impl FnOnce(&mut Watch, Instant) -> R) -> R {
    let now = Instant::now();
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = watch.get_or_insert_with(|| Watch {
        room: platform::memory_room(),
        looked_at: now,
        strain: platform::memory_strain(),
        strain_at: now,
        pressed_at: None,
    });
    if now.duration_since(watch.looked_at) >= FRESH {
        watch.room = platform::memory_room();
        watch.looked_at = now;
    }
    use_it(watch, now)
}

/// Whether this process may keep this many unused bytes.
pub(crate) fn may_keep(bytes: u64) -> bool {
    with_watch(|watch, _| !watch.room.is_short && bytes <= watch.room.left_bytes / WARM_SHARE)
}

/// Whether memory is short: little is left, a control group has reached its limit or its `memory.high` since the last
/// call, or processes stall on memory. Call it about once a second.
pub fn memory_is_short() -> bool {
    with_watch(|watch, now| {
        let strain = platform::memory_strain();
        let since = now.duration_since(watch.strain_at);
        if is_strained(watch.strain, strain, since) {
            watch.pressed_at = Some(now);
        }
        watch.strain = strain;
        watch.strain_at = now;
        let is_noticed = |at: Instant| now.duration_since(at) < NOTICE;
        watch.room.is_short || watch.pressed_at.is_some_and(is_noticed)
    })
}

/// Waits at most `longest` until there is room for this many bytes; returns whether there is. The system does not
/// announce when memory becomes available, so this polls.
pub fn await_memory(bytes: u64, longest: Duration) -> bool {
    let deadline = Instant::now() + longest;
    loop {
        if platform::has_room(bytes) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(ASK_PERIOD);
    }
}

fn is_strained(before: Strain, after: Strain, since: Duration) -> bool {
    let stalled = Duration::from_micros(after.stalled_us.saturating_sub(before.stalled_us));
    after.limit_hits > before.limit_hits || (!stalled.is_zero() && stalled * STALLED_SHARE >= since)
}

// Giving memory back.

/// Returns free heap memory to the system, including gaps between used blocks. Each page that is used again costs a
/// fault.
pub fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, and locks the heaps itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Touches this many bytes of this thread's heap and frees them, so that the first allocations cause no page faults.
///
/// The C library keeps what is freed at the top of a heap, up to a limit. Large blocks are mapped separately until one
/// has been freed: the first of the two rounds also raises the limit.
pub fn touch_heap(bytes: usize) {
    for _ in 0..2 {
        drop(black_box(vec![1_u8; bytes]));
    }
}

// Memory that takes long to release is released by a background thread.

/// Above this size, releasing memory takes longer than starting a thread.
const LARGE_BYTES: u64 = 4 * 1024 * 1024;

/// Drops an object that holds much memory: written pages take 200 ns each to unmap, and as long to free.
pub(crate) fn drop_memory<T: Send + 'static>(memory: T, bytes: u64) {
    if bytes >= LARGE_BYTES {
        let thread = std::thread::Builder::new().name("broadleaf-unmap".to_owned());
        // Without a thread it is dropped here, together with the closure.
        drop(thread.spawn(move || drop(memory)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(files: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |path| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        }
    }

    fn limit_of(files: &[(&str, &str)]) -> u64 {
        limit_bytes(&reader(files))
    }

    #[test]
    fn the_lowest_limit_of_host_and_groups_counts() {
        let meminfo = (
            "/proc/meminfo",
            "MemTotal: 9 kB\nMemAvailable:    8000 kB\n",
        );
        assert_eq!(limit_of(&[meminfo]), 8_192_000);
        let v2 = ("/proc/self/cgroup", "0::/user/app\n");
        let app = ("/sys/fs/cgroup/user/app/memory.max", "max\n");
        let user = ("/sys/fs/cgroup/user/memory.max", "5000\n");
        assert_eq!(limit_of(&[meminfo, v2, app, user]), 5000);
        let v1 = ("/proc/self/cgroup", "7:cpu:/a\n4:hugetlb,memory:/a/b\n");
        let root = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700\n");
        assert_eq!(limit_of(&[meminfo, v1, root]), 700);
    }

    #[test]
    fn pages_of_files_count_as_available() {
        let files = [
            ("/proc/meminfo", "MemAvailable: 9000 kB"),
            ("/proc/self/cgroup", "0::/app\n"),
            ("/sys/fs/cgroup/app/memory.max", "1000\n"),
            ("/sys/fs/cgroup/app/memory.current", "900\n"),
            (
                "/sys/fs/cgroup/app/memory.stat",
                "anon 600\nactive_file 40\ninactive_file 260\n",
            ),
        ];
        assert_eq!(room(&reader(&files)).left_bytes, 400);
        assert_eq!(room(&reader(&files[..4])).left_bytes, 100);
        assert_eq!(room(&reader(&files[..2])).left_bytes, 9_216_000);
    }

    #[test]
    fn a_group_is_short_when_a_quarter_is_left_and_the_host_when_an_eighth_is() {
        let host = |left| format!("MemTotal: 8000 kB\nMemAvailable: {left} kB");
        let room_of = |meminfo: &str, usage: &str, stat: &str| {
            room(&reader(&[
                ("/proc/meminfo", meminfo),
                ("/proc/self/cgroup", "4:memory:/a"),
                ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "100000"),
                ("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", usage),
                ("/sys/fs/cgroup/memory/a/memory.stat", stat),
            ]))
        };
        let plenty = host(5000);
        let room = room_of(&plenty, "75000", "");
        assert_eq!((room.left_bytes, room.is_short), (25_000, false));
        assert!(room_of(&plenty, "75001", "").is_short);
        assert!(!room_of(&plenty, "90000", "total_active_file 30000").is_short);
        assert!(room_of(&host(999), "0", "").is_short);
        assert!(!room_of(&host(1000), "0", "").is_short);
    }

    #[test]
    fn strain_is_what_groups_tell_or_else_the_host() {
        let pressure =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=700\nfull avg10=0.00 total=3\n";
        let files = [
            ("/proc/self/cgroup", "0::/a/b"),
            ("/proc/pressure/memory", pressure),
            (
                "/sys/fs/cgroup/a/b/memory.events",
                "low 9\nhigh 1\nmax 2\noom 4\noom_kill 8\n",
            ),
            (
                "/sys/fs/cgroup/a/memory.pressure",
                "some avg10=1.00 total=55",
            ),
            ("/sys/fs/cgroup/a/memory.events", "max 100"),
        ];
        let both = strain(&reader(&files));
        assert_eq!((both.limit_hits, both.stalled_us), (107, 55));
        let host = strain(&reader(&files[..2]));
        assert_eq!((host.limit_hits, host.stalled_us), (0, 700));
        let v1 = [
            ("/proc/self/cgroup", "3:memory:/"),
            ("/sys/fs/cgroup/memory/memory.failcnt", "12\n"),
        ];
        assert_eq!(strain(&reader(&v1)).limit_hits, 12);
        assert_eq!(strain(&reader(&[])), Strain::default());
    }

    #[test]
    fn nothing_known_is_no_limit_and_garbage_is_ignored() {
        assert_eq!(limit_of(&[]), u64::MAX);
        assert_eq!(
            limit_of(&[("/proc/meminfo", "MemAvailable: x kB")]),
            u64::MAX
        );
        assert_eq!(limit_of(&[("/proc/self/cgroup", "0:\n\nx")]), u64::MAX);
    }

    #[test]
    fn this_host_has_memory() {
        let limit_bytes = memory_limit_bytes();
        assert!(
            limit_bytes > 1 << 20 && limit_bytes < 1 << 50,
            "{limit_bytes}"
        );
    }

    #[test]
    fn hits_and_long_stalls_are_strain() {
        let at = |limit_hits, stalled_us| Strain {
            limit_hits,
            stalled_us,
        };
        let second = Duration::from_secs(1);
        assert!(!is_strained(at(3, 500), at(3, 500), Duration::ZERO));
        assert!(is_strained(at(3, 500), at(4, 500), second));
        assert!(!is_strained(at(3, 500), at(3, 90_000), second));
        assert!(is_strained(at(3, 500), at(3, 110_000), second));
    }
}

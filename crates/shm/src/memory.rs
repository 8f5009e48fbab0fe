//! How much memory there is to use.

use crate::platform;

/// Memory this process may expect to get, in bytes: the host's available memory, or its control
/// group's limit (version 1 or 2, any ancestor) where that is less. `u64::MAX` when neither is known.
pub fn memory_limit_bytes() -> u64 {
    platform::memory_limit_bytes()
}

/// Reads a file by its path; `None` when it cannot be read.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The limit from the files of `/proc` and `/sys/fs/cgroup`.
pub(crate) fn limit_bytes(read: Read) -> u64 {
    least_bytes(read, |group, files| {
        let text = read(&format!("{group}/{}", files.limit))?;
        text.trim().parse().ok()
    })
}

/// What is left of that limit: what control groups use now is taken off, but for pages of files,
/// which the kernel gives up when it must.
pub(crate) fn available_bytes(read: Read) -> u64 {
    least_bytes(read, |group, files| {
        let number = |file| read(&format!("{group}/{file}"))?.trim().parse::<u64>().ok();
        let left_bytes = number(files.limit)?.saturating_sub(number(files.usage)?);
        let stat = read(&format!("{group}/memory.stat")).unwrap_or_default();
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let reclaimable = fields.filter(|(name, _)| files.reclaimable.contains(name));
        let bytes = reclaimable.filter_map(|(_, value)| value.trim().parse::<u64>().ok());
        Some(bytes.fold(left_bytes, u64::saturating_add))
    })
}

fn least_bytes(read: Read, of_group: impl Fn(&str, &GroupFiles) -> Option<u64>) -> u64 {
    let host_bytes = read("/proc/meminfo")
        .as_deref()
        .and_then(mem_available_bytes)
        .unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    groups
        .lines()
        .filter_map(group_of)
        .flat_map(|(files, path)| ancestors(path).map(move |dir| (files, dir)))
        .filter_map(|(files, dir)| of_group(&format!("{}{dir}", files.mount), files))
        .fold(host_bytes, u64::min)
}

/// Where a version of control groups keeps its figures.
struct GroupFiles {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    reclaimable: [&'static str; 2],
}

const VERSION_1: GroupFiles = GroupFiles {
    mount: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: GroupFiles = GroupFiles {
    mount: "/sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

fn mem_available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
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
    fn the_least_of_host_and_groups_counts() {
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
        assert_eq!(available_bytes(&reader(&files)), 400);
        assert_eq!(available_bytes(&reader(&files[..4])), 100);
        assert_eq!(available_bytes(&reader(&files[..2])), 9_216_000);
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
}

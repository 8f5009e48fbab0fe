//! How much memory there is to use.

use crate::platform;

/// Memory this process may expect to get, in bytes: the host's available memory, or its control
/// group's limit (version 1 or 2, any ancestor) where that is less. `u64::MAX` when neither is known.
pub fn memory_limit_bytes() -> u64 {
    platform::memory_limit_bytes()
}

/// The limit from the files of `/proc` and `/sys/fs/cgroup`, which `read` gives by path.
pub(crate) fn limit_bytes(read: &dyn Fn(&str) -> Option<String>) -> u64 {
    let available_bytes = read("/proc/meminfo")
        .as_deref()
        .and_then(mem_available_bytes)
        .unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    groups
        .lines()
        .filter_map(group_of)
        .flat_map(|(mount, path, file)| ancestors(path).map(move |dir| (mount, dir, file)))
        .filter_map(|(mount, dir, file)| read(&format!("{mount}{dir}/{file}")))
        .filter_map(|text| text.trim().parse().ok())
        .fold(available_bytes, u64::min)
}

fn mem_available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Mount point, path and limit file of a line of `/proc/self/cgroup` that can limit memory.
fn group_of(line: &str) -> Option<(&'static str, &str, &'static str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    if controllers.is_empty() {
        Some(("/sys/fs/cgroup", path, "memory.max"))
    } else if controllers.split(',').any(|name| name == "memory") {
        Some(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
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

    fn limit_of(files: &[(&str, &str)]) -> u64 {
        limit_bytes(&|path| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        })
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

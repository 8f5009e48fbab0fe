//! What a segment guarantees to everyone who maps it, and what it refuses.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;

use broadleaf_shm::{Segment, ShmError};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

const LEN: u64 = 64 * 1024;

fn filled(byte: u8) -> Segment {
    Segment::create(LEN, &vec![byte; LEN as usize]).unwrap().0
}

fn received(segment: &Segment) -> Segment {
    let fd = segment.fd().try_clone_to_owned().unwrap();
    Segment::from_fd(fd, segment.len()).unwrap()
}

fn memfd(len_bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"test", flags).unwrap();
    rustix::fs::ftruncate(&fd, len_bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn content_is_at_the_start_and_zeroes_follow() {
    for len in [1, 4095, 4096, 4097, 100_000] {
        let content: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let (segment, mut writer) = Segment::create(200_000, &content).unwrap();
        assert_eq!(segment.len(), 200_704);
        assert_eq!(writer.as_mut_slice()[..len], content);
        assert!(writer.as_mut_slice()[len..].iter().all(|b| *b == 0));
    }
}

#[test]
fn the_size_cannot_be_changed_nor_the_seals_undone() {
    let segment = filled(1);
    for len_bytes in [0, LEN - 4096, LEN + 4096] {
        assert_eq!(
            rustix::fs::ftruncate(segment.fd(), len_bytes),
            Err(Errno::PERM)
        );
    }
    let grown = rustix::fs::fallocate(segment.fd(), FallocateFlags::empty(), LEN, 4096);
    assert_eq!(grown, Err(Errno::PERM));
    assert_eq!(
        rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::WRITE),
        Err(Errno::PERM)
    );
}

#[test]
fn a_receiver_cannot_change_the_shared_copy() {
    let segment = received(&filled(7));
    let mut file = File::from(segment.fd().try_clone_to_owned().unwrap());
    assert!(file.write(b"x").is_err());
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(
        rustix::fs::fallocate(segment.fd(), hole, 0, 4096),
        Err(Errno::PERM)
    );
    let map = |prot| {
        // SAFETY: the kernel picks the address.
        unsafe { rustix::mm::mmap(null_mut(), 4096, prot, MapFlags::SHARED, segment.fd(), 0) }
    };
    assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
    let start = map(ProtFlags::READ).unwrap();
    let writable = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
    // SAFETY: the page was mapped above and nobody borrows it.
    let protected = unsafe { rustix::mm::mprotect(start, 4096, writable) };
    assert_eq!(protected, Err(Errno::ACCESS));
    // SAFETY: as above.
    unsafe { rustix::mm::munmap(start, 4096) }.unwrap();
    assert!(
        segment
            .map_readonly(0, LEN)
            .unwrap()
            .iter()
            .all(|b| *b == 7)
    );
}

#[test]
fn descriptors_that_could_fault_are_refused() {
    let both = SealFlags::SHRINK | SealFlags::GROW;
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        let refused = Segment::from_fd(memfd(LEN, seals), LEN);
        assert!(matches!(refused, Err(ShmError::NotSealed)), "{seals:?}");
    }
    let short = Segment::from_fd(memfd(LEN - 1, both), LEN);
    assert!(
        matches!(short, Err(ShmError::SizeMismatch { actual_bytes, .. }) if actual_bytes == LEN - 1)
    );
    let file = File::open("/proc/self/exe").unwrap();
    assert!(matches!(
        Segment::from_fd(file.into(), 1),
        Err(ShmError::NotSealed)
    ));
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(
        Segment::from_fd(reader.into(), 1),
        Err(ShmError::NotSealed)
    ));
    assert!(Segment::from_fd(memfd(LEN, both), LEN).is_ok());
}

#[test]
fn a_file_that_cannot_be_sealed_is_taken_if_it_is_whole_and_has_no_name() {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(c"/dev/shm", flags, Mode::RUSR | Mode::WUSR) else {
        return; // no such file system here
    };
    rustix::fs::ftruncate(&fd, LEN).unwrap();
    let copy = || fd.try_clone().unwrap();
    assert!(matches!(
        Segment::from_fd(copy(), LEN),
        Err(ShmError::NotSealed)
    ));
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, LEN).unwrap();
    assert!(Segment::from_fd(copy(), LEN).is_ok());
    assert!(matches!(
        Segment::from_fd(copy(), LEN + 1),
        Err(ShmError::SizeMismatch { .. })
    ));
    let path = format!("/dev/shm/broadleaf-test-{}", std::process::id());
    let named = File::create_new(&path).unwrap();
    rustix::fs::fallocate(&named, FallocateFlags::empty(), 0, LEN).unwrap();
    let refused = Segment::from_fd(named.into(), LEN);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(refused, Err(ShmError::NotSealed)));
}

#[test]
fn ranges_outside_the_segment_are_refused() {
    let segment = filled(3);
    let ranges = [
        (0, 0),
        (0, LEN + 1),
        (LEN, 1),
        (4096, LEN),
        (u64::MAX - 4095, 4096),
    ];
    for (offset_bytes, len_bytes) in ranges {
        for mapped in [
            segment.map_private(offset_bytes, len_bytes),
            segment.map_readonly(offset_bytes, len_bytes),
        ] {
            assert!(
                matches!(mapped, Err(ShmError::BadRange { .. })),
                "{offset_bytes}+{len_bytes}"
            );
        }
        // Longer ranges begin outside, or end there.
        let mut bytes = vec![0; len_bytes.min(LEN + 1) as usize];
        assert!(matches!(
            segment.read(offset_bytes, &mut bytes),
            Err(ShmError::BadRange { .. })
        ));
    }
    assert_eq!(segment.map_private(4096, 5).unwrap()[..], [3; 5]);
    assert_eq!(segment.map_private(4099, 5).unwrap()[..], [3; 5]);
}

#[test]
fn sizes_no_segment_can_have_are_refused() {
    for len_bytes in [0, u64::MAX, 1 << 63] {
        let refused = Segment::create(len_bytes, &[]);
        assert!(matches!(refused, Err(ShmError::BadSize(_))), "{len_bytes}");
    }
    assert!(matches!(
        Segment::create(4096, &[0; 4097]),
        Err(ShmError::BadSize(4096))
    ));
}

#[test]
fn a_private_view_keeps_its_writes_to_itself() {
    let segment = filled(1);
    let other = received(&segment);
    let mut mine = other.map_private(0, LEN).unwrap();
    let theirs = other.map_private(0, LEN).unwrap();
    assert!(mine.is_writable());
    mine.as_mut_slice().unwrap()[5000] = 9;
    assert_eq!((mine[5000], theirs[5000]), (9, 1));
    let mut shared = segment.map_readonly(0, LEN).unwrap();
    assert_eq!(shared[5000], 1);
    assert!(!shared.is_writable() && shared.as_mut_slice().is_none());
}

#[test]
fn a_private_view_outlives_its_segment() {
    let segment = filled(5);
    let view = received(&segment).map_private(0, LEN).unwrap();
    drop(segment);
    assert!(view.iter().all(|b| *b == 5));
}

#[test]
fn a_private_view_stays_private_after_fork() {
    let segment = filled(1);
    let mut view = segment.map_private(0, LEN).unwrap();
    view.as_mut_slice().unwrap()[0] = 2;
    // SAFETY: the child only touches memory that is mapped, then exits at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let bytes = view.as_mut_slice().unwrap();
        let inherited = bytes[0] == 2 && bytes[4096] == 1;
        bytes[0] = 3;
        bytes[4096] = 3;
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!inherited)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw other bytes");
    assert_eq!((view[0], view[4096]), (2, 1));
    let shared = segment.map_readonly(0, LEN).unwrap();
    assert_eq!((shared[0], shared[4096]), (1, 1));
}

#[test]
fn mapping_privately_copies_no_page() {
    const LARGE: u64 = 64 * 1024 * 1024;
    let (segment, _writer) = Segment::create(LARGE, &[]).unwrap();
    let view = segment.map_private(0, LARGE).unwrap();
    let sum: u64 = view.iter().step_by(4096).map(|b| u64::from(*b)).sum();
    assert_eq!(sum, 0);
    // Pages of its own would appear as anonymous in the map that starts at the view.
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:08x}-", view.as_ptr().addr());
    let own_map = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let anonymous = own_map
        .skip(1)
        .find(|line| line.starts_with("Anonymous:"))
        .unwrap();
    assert_eq!(
        anonymous.split_whitespace().nth(1),
        Some("0"),
        "{anonymous}"
    );
}

#[test]
fn a_written_page_is_known_until_the_mapping_ends() {
    let segment = filled(9);
    let view = || received(&segment).map_private(0, LEN).unwrap();
    let pages = (LEN / 4096) as usize;
    let all = LEN as usize;
    assert!(pages >= 4);
    for page in [0, pages / 2, pages - 1] {
        let mut mine = view();
        assert!(mine.is_untouched(0, all));
        let at = page * 4096 + 17;
        assert_eq!(mine[at], 9);
        assert!(mine.is_untouched(0, all), "reading changes nothing");
        mine.as_mut_slice().unwrap()[at] = 9;
        assert!(!mine.is_untouched(0, all));
        assert!(!mine.is_untouched(at, 1));
        assert!(!mine.is_untouched(page * 4096, 4096));
        assert!(page == 0 || mine.is_untouched(0, page * 4096));
        assert!(page + 1 == pages || mine.is_untouched((page + 1) * 4096, 4096));
        assert!(view().is_untouched(0, all), "another mapping has its own");
    }
    let readonly = segment.map_readonly(0, LEN).unwrap();
    assert!(readonly.is_untouched(0, all));
}

#[test]
fn a_range_may_start_anywhere() {
    let content: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    let (segment, _) = Segment::create(LEN, &content).unwrap();
    for (offset, len) in [(1, 10), (4095, 2), (4097, 4096), (5000, LEN - 5000)] {
        let mut mine = segment.map_private(offset, len).unwrap();
        let (first, end) = (offset as usize, (offset + len) as usize);
        assert_eq!(mine[..], content[first..end]);
        assert!(mine.is_untouched(0, len as usize));
        mine.as_mut_slice().unwrap()[len as usize - 1] = 252;
        assert_eq!(mine[len as usize - 1], 252);
        assert!(!mine.is_untouched(len as usize - 1, 1));
        assert_eq!(
            segment.map_readonly(offset, len).unwrap()[..],
            content[first..end]
        );
        let mut read = vec![0; len as usize];
        segment.read(offset, &mut read).unwrap();
        assert_eq!(read, content[first..end]);
    }
}

//! The few system calls that no safe binding covers, each wrapped once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as raw;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WRITEPROTECT};

/// `_IOWR('f', 16, struct pm_scan_arg)`: direction 3, size in bits 16 to 29, type, number.
const PAGEMAP_SCAN: u32 =
    (3 << 30) | ((size_of::<raw::pm_scan_arg>() as u32) << 16) | ((b'f' as u32) << 8) | 16;
const _: () = assert!(size_of::<raw::pm_scan_arg>() == 96);

/// Of `linux/mempolicy.h`: move pages that only this process maps.
const MPOL_MF_MOVE: i32 = 1 << 1;
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1 << 0;
/// Only faults from user mode may block; with asynchronous write protection none does, and no privilege is needed.
const UFFD_USER_MODE_ONLY: i32 = 1;

/// Flags with which the userfaultfd is made, also inside the target.
pub(crate) const USERFAULTFD_FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;

pub(crate) use raw::page_region as PageRegion;

/// One of the kernel's structures that an `ioctl` takes by address.
///
/// # Safety `argument` must be the type that belongs to the request's number. Addresses in it that the kernel writes to
/// must be valid for that.
unsafe fn ioctl<T>(fd: impl AsFd, request: u32, argument: &mut T) -> io::Result<u64> {
    // SAFETY: the descriptor is open for the duration of the call, and `argument` is a live exclusive reference. The
    // caller guarantees its type and the addresses in it.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), u64::from(request), argument as *mut T) };
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A userfaultfd on our own memory, to ask the kernel what it can do.
pub(crate) fn userfaultfd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no address; on success it returns a new descriptor that has no other owner.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, USERFAULTFD_FLAGS);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}

/// Chooses asynchronous write protection. `EINVAL` means that the kernel does not have it.
pub(crate) fn uffd_api(uffd: impl AsFd) -> io::Result<()> {
    let features = UFFD_FEATURE_WP_ASYNC
        | UFFD_FEATURE_WP_UNPOPULATED
        | UFFD_FEATURE_WP_HUGETLBFS_SHMEM
        | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    let mut api = raw::uffdio_api { api: UFFD_API, features, ioctls: 0 };
    // SAFETY: UFFDIO_API takes an `uffdio_api`, which holds no address.
    unsafe { ioctl(uffd, UFFDIO_API, &mut api) }.map(drop)
}

fn range(start: u64, length: u64) -> raw::uffdio_range {
    raw::uffdio_range { start, len: length }
}

/// Registers addresses of the userfaultfd's own process for write protection.
pub(crate) fn uffd_register(uffd: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    let mut argument =
        raw::uffdio_register { range: range(start, length), mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
    // SAFETY: UFFDIO_REGISTER takes an `uffdio_register`; its addresses are the target's, and nothing is written there.
    unsafe { ioctl(uffd, UFFDIO_REGISTER, &mut argument) }.map(drop)
}

/// Takes addresses out again, and their write protection off.
pub(crate) fn uffd_unregister(uffd: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    // SAFETY: UFFDIO_UNREGISTER takes an `uffdio_range`; its addresses are the target's.
    unsafe { ioctl(uffd, UFFDIO_UNREGISTER, &mut range(start, length)) }.map(drop)
}

/// Write-protects registered addresses, page by page (a huge page is split).
pub(crate) fn uffd_write_protect(uffd: impl AsFd, start: u64, length: u64) -> io::Result<()> {
    let mut argument =
        raw::uffdio_writeprotect { range: range(start, length), mode: UFFDIO_WRITEPROTECT_MODE_WP };
    loop {
        // SAFETY: UFFDIO_WRITEPROTECT takes an `uffdio_writeprotect`; its addresses are the target's.
        match unsafe { ioctl(&uffd, UFFDIO_WRITEPROTECT, &mut argument) } {
            // The target is mapping or forking at this moment.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::thread::yield_now(),
            other => return other.map(drop),
        }
    }
}

/// Which pages a scan looks for, and what it does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanKind {
    /// Written pages: report and leave as they are.
    Peek,
    /// Written pages: report and write-protect again, in one step for each page.
    Clear,
    /// As `Peek`, asked for as any of several categories. Kernels without the fix of July 2026 leave out pages with an
    /// empty page-table entry here; kernels before 6.9 are right about pages that are being moved only here.
    PeekAnyOf,
    /// As `Clear`, asked for so.
    ClearAnyOf,
    /// Pages with an empty page-table entry, or without a page table. None of them is protected.
    Empty,
    /// Pages that have an entry in the page tables, because the process touched them or one near by. Write protection
    /// makes entries of its own, also for pages that were never there.
    Mapped,
    /// Pages that are there and in the page tables, protected or not.
    Present,
}

/// The masks of a scan. A page matches if it has all of `all` and, where `any` is not empty, one of `any`. Categories
/// in `inverted` match where the page does not have them.
#[derive(Clone, Copy, Debug, Default)]
struct Query {
    all: u32,
    any: u32,
    inverted: u32,
    returned: u32,
}

impl ScanKind {
    fn flags(self) -> u32 {
        match self {
            ScanKind::Clear | ScanKind::ClearAnyOf => raw::PM_SCAN_WP_MATCHING | raw::PM_SCAN_CHECK_WPASYNC,
            ScanKind::Peek | ScanKind::PeekAnyOf | ScanKind::Empty => raw::PM_SCAN_CHECK_WPASYNC,
            ScanKind::Mapped | ScanKind::Present => 0,
        }
    }

    /// `Peek` and `Clear` have exactly these masks, because only then the kernel compares nothing but the
    /// protection of an entry. With any other mask older kernels take an empty entry for one that was not written.
    fn query(self) -> Query {
        let (written, present, swapped) = (raw::PAGE_IS_WRITTEN, raw::PAGE_IS_PRESENT, raw::PAGE_IS_SWAPPED);
        match self {
            ScanKind::Peek | ScanKind::Clear => Query { all: written, returned: written, ..Query::default() },
            ScanKind::PeekAnyOf | ScanKind::ClearAnyOf => {
                Query { any: written, returned: written, ..Query::default() }
            }
            // The marker of an absent page's protection counts as swapped.
            ScanKind::Empty => {
                let entry = present | swapped;
                Query { all: entry, inverted: entry, returned: present, ..Query::default() }
            }
            ScanKind::Mapped => {
                Query { any: present | swapped, returned: present | swapped, ..Query::default() }
            }
            ScanKind::Present => Query { all: present, returned: present, ..Query::default() },
        }
    }
}

/// One call of PAGEMAP_SCAN for such pages from `start` up to `end`, reported into `found`.
/// Returns how many entries were filled and up to which address the kernel came.
pub(crate) fn pagemap_scan(
    pagemap: impl AsFd,
    start: u64,
    end: u64,
    kind: ScanKind,
    found: &mut [PageRegion],
) -> io::Result<(usize, u64)> {
    let query = kind.query();
    let mut argument = raw::pm_scan_arg {
        size: size_of::<raw::pm_scan_arg>() as u64,
        flags: u64::from(kind.flags()),
        start,
        end,
        walk_end: 0,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        max_pages: 0,
        category_inverted: u64::from(query.inverted),
        category_mask: u64::from(query.all),
        category_anyof_mask: u64::from(query.any),
        return_mask: u64::from(query.returned),
    };
    // SAFETY: PAGEMAP_SCAN takes a `pm_scan_arg`; the kernel writes at most `vec_len` entries to `vec`, which is
    // `found`, exclusively borrowed for the whole call, and `page_region` is plain numbers.
    let count = unsafe { ioctl(pagemap, PAGEMAP_SCAN, &mut argument) }?;
    Ok((usize::try_from(count).unwrap_or(0).min(found.len()), argument.walk_end))
}

/// NUMA nodes that are tried as a target, from the first.
pub(crate) const NODES_TRIED: i32 = 8;

/// Moves pages of our own process to a NUMA node, or only asks. The node of each page after that; `None` if it failed.
pub(crate) fn move_pages(pages: &[*mut libc::c_void], node: Option<i32>) -> Option<Vec<i32>> {
    let nodes = node.map(|node| vec![node; pages.len()]);
    let mut status = vec![-1i32; pages.len()];
    // SAFETY: `pages` and `nodes` are read, `status` is written, each with as many entries as the count says. A page
    // keeps its address and its content.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            nodes.as_ref().map_or(std::ptr::null(), |nodes| nodes.as_ptr()),
            status.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    (result == 0 && status.iter().all(|node| *node >= 0)).then_some(status)
}

/// Copies into memory of our own process by `process_vm_writev`: stores from here would fault with SIGBUS where a page
/// of a file cannot be had, and the kernel says `EFAULT`.
///
/// # Safety
/// `to` must be mapped and writable for `from.len()` bytes, and never be seen as a slice.
pub(crate) unsafe fn write_own(from: &[u8], to: *mut u8) -> io::Result<()> {
    let own = std::process::id() as libc::pid_t;
    let mut done = 0;
    while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
        let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let remote = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: rest.len() };
        // SAFETY: both lists have one entry. The kernel reads `rest`, and writes where the caller guarantees it.
        let written = unsafe { libc::process_vm_writev(own, &local, 1, &remote, 1, 0) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => done += bytes,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// How many pages of a file's range are in memory. `None` where the kernel or the file system cannot say.
pub(crate) fn pages_cached(file: impl AsFd, offset: u64, length: u64) -> Option<u64> {
    let mut wanted = raw::cachestat_range { off: offset, len: length };
    // SAFETY: `cachestat` is plain numbers, for which all zero is a value.
    let mut found: raw::cachestat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads one `cachestat_range` and writes one `cachestat`; both are live and exclusive here.
    let result = unsafe {
        libc::syscall(
            libc::c_long::from(raw::__NR_cachestat),
            file.as_fd().as_raw_fd(),
            &mut wanted as *mut raw::cachestat_range,
            &mut found as *mut raw::cachestat,
            0,
        )
    };
    (result == 0).then_some(found.nr_cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_pagemap_scan_is_the_kernels() {
        assert_eq!(PAGEMAP_SCAN, 0xC060_6610);
    }
}

//! Copying between guest RAM and buffers, also where RAM has no page to give. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use linerate_core::Run;
use linerate_memory::Mapping;

const PAGE: usize = 4096;

fn run(first_page: usize, pages: usize) -> Run {
    Run { offset: (first_page * PAGE) as u64, length: (pages * PAGE) as u64 }
}

/// Mounts a tmpfs of so many pages for this thread only. It is removed when the thread ends.
fn mount_small_tmpfs(folder: &Path, pages: usize) {
    let text = |text: &str| CString::new(text).unwrap();
    let (none, root, kind) = (text("none"), text("/"), text("tmpfs"));
    let (folder, size) = (text(folder.to_str().unwrap()), text(&format!("size={}", pages * PAGE)));
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "{}", std::io::Error::last_os_error());
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        assert_eq!(libc::mount(none.as_ptr(), root.as_ptr(), none.as_ptr(), flags, std::ptr::null()), 0);
        let size = size.as_ptr().cast();
        assert_eq!(libc::mount(none.as_ptr(), folder.as_ptr(), kind.as_ptr(), 0, size), 0);
    }
}

/// Calls with a mapping of `pages` holes, in a tmpfs of which `free` can be filled.
fn in_small_tmpfs(pages: usize, free: usize, check: impl FnOnce(Mapping, File) + Send + 'static) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let checked = std::thread::spawn(move || {
        mount_small_tmpfs(&path, free);
        let file = File::options().read(true).write(true).create_new(true).open(path.join("ram")).unwrap();
        file.set_len((pages * PAGE) as u64).unwrap();
        check(Mapping::of_file(file.try_clone().unwrap()).unwrap(), file);
    });
    checked.join().unwrap();
}

#[test]
fn what_is_written_is_in_the_file_and_is_read_again() {
    in_small_tmpfs(8, 64, |mapping, file| {
        let content: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251) as u8).collect();
        let place = Run { offset: 4000, length: content.len() as u64 };
        mapping.write(place, &content).unwrap();
        let mut got = vec![0; content.len()];
        file.read_exact_at(&mut got, 4000).unwrap();
        assert!(got == content);
        got.fill(0);
        mapping.read(place, &mut got).unwrap();
        assert!(got == content);
    });
}

#[test]
fn runs_outside_and_buffers_of_other_lengths_are_refused() {
    in_small_tmpfs(2, 64, |mapping, _| {
        let mut page = vec![1; PAGE];
        for place in [run(2, 1), Run { offset: 1, length: 2 * PAGE as u64 }, run(0, 2)] {
            assert_eq!(mapping.write(place, &page).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
            assert_eq!(mapping.read(place, &mut page).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn a_full_tmpfs_is_an_error_and_no_signal() {
    in_small_tmpfs(16, 4, |mapping, file| {
        let content = vec![7; 16 * PAGE];
        let error = mapping.write(run(0, 16), &content).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{error}");
        let mut got = vec![0; 4 * PAGE];
        mapping.read(run(0, 4), &mut got).unwrap();
        assert!(got == content[..got.len()], "what fitted is there");
        let full = file.metadata().unwrap().blocks();
        mapping.read(run(8, 4), &mut got).unwrap();
        assert!(got == vec![0; got.len()]);
        assert_eq!(file.metadata().unwrap().blocks(), full, "a hole that is read stays a hole");
    });
}

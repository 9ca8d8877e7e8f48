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

/// What is there and what is not is told page by page, for runs that begin and end inside pages too.
#[test]
fn runs_that_are_there_in_part_are_read_and_are_no_signal_when_they_are_written() {
    in_small_tmpfs(16, 4, |mapping, file| {
        let (content, last) = (vec![7; 4 * PAGE], Run { offset: 4 * PAGE as u64 - 1, length: 2 });
        mapping.write(run(0, 4), &content).unwrap();
        let full = file.metadata().unwrap().blocks();
        for place in [run(2, 4), run(3, 2), run(4, 1), last] {
            let length = place.length as usize;
            let error = mapping.write(place, &vec![8; length]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{place:?}: {error}");
            let there = (4 * PAGE).saturating_sub(place.offset as usize);
            let mut got = vec![1; length];
            mapping.read(place, &mut got).unwrap();
            let (data, holes) = got.split_at(there);
            assert!(data.iter().all(|byte| *byte == 8) && holes.iter().all(|byte| *byte == 0), "{place:?}");
        }
        // What is there can be written in a full file system.
        let inside = Run { offset: 5, length: 4 * PAGE as u64 - 5 };
        mapping.write(inside, &vec![9; inside.length as usize]).unwrap();
        let mut got = vec![0; inside.length as usize];
        file.read_exact_at(&mut got, 5).unwrap();
        assert!(got.iter().all(|byte| *byte == 9));
        assert_eq!(file.metadata().unwrap().blocks(), full, "a hole that is read stays a hole");
    });
}

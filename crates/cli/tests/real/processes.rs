//! Command lines and environments of all processes of the machine, as everybody reads them who may look.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lock::Mutex;

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);
/// Between two looks. A process that lives for less may not be seen.
const PAUSE: Duration = Duration::from_millis(1);

/// Looks at them again and again until it is dropped.
pub struct Processes {
    seen: Arc<Mutex<HashSet<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Processes {
    pub fn watch() -> Processes {
        let (seen, stop) = (Arc::<Mutex<HashSet<Vec<u8>>>>::default(), Arc::<AtomicBool>::default());
        let (texts, ended) = (seen.clone(), stop.clone());
        let look = move || {
            while !ended.load(Ordering::SeqCst) {
                let now = all();
                texts.lock().extend(now);
                std::thread::sleep(PAUSE);
            }
        };
        Processes { seen, stop, thread: Some(std::thread::spawn(look)) }
    }

    /// Whether a process that was seen had this text.
    pub fn have(&self, text: &str) -> bool {
        // Searched without the lock: it takes long.
        let seen = self.seen.lock().clone();
        seen.iter().any(|one| one.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    /// Waits until a process with this text is seen.
    pub fn wait(&self, text: &str) {
        let deadline = Instant::now() + LONG;
        while !self.have(text) {
            assert!(Instant::now() < deadline, "no process has {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn all() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    let files = processes.flat_map(|entry| ["cmdline", "environ"].map(|file| entry.path().join(file)));
    // One that ends meanwhile has none, and the kernel's own threads have empty ones.
    files.filter_map(|file| std::fs::read(file).ok()).filter(|text| !text.is_empty()).collect()
}

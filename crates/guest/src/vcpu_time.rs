//! Whether a guest's virtual CPUs have executed anything since a moment at which the guest was stopped. QEMU need not
//! be asked for it, so that it is known while another client has the QMP connection.

use serde::{Deserialize, Serialize};

use crate::procfs;

/// CPU time of a guest's virtual CPUs at a moment, as the kernel counts it. A little more may be QEMU's own work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuTime {
    /// Threads of the virtual CPUs.
    #[serde(default, rename = "cpu_threads")]
    pub threads: Vec<i32>,
    /// For how long they had run, nanoseconds in all; none if that is not known.
    #[serde(default, rename = "cpu_run_ns")]
    pub run_ns: Option<u64>,
}

impl VcpuTime {
    /// For these threads of virtual CPUs; their CPU time is not taken yet.
    pub fn of(threads: &[i32]) -> VcpuTime {
        VcpuTime { threads: threads.to_vec(), run_ns: None }
    }

    /// Takes the CPU time of this moment as the one to compare with.
    pub fn count(&mut self, pid: i32) {
        self.run_ns = procfs::run_time_ns(pid, &self.threads);
    }

    /// Whether they have executed anything since it was counted; none if that is not known.
    pub fn has_run(&self, pid: i32) -> Option<bool> {
        let before = self.run_ns.filter(|_| !self.threads.is_empty())?;
        procfs::run_time_ns(pid, &self.threads).map(|now| now != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_has_run_and_one_that_waits_has_not() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let mut time = VcpuTime::of(&[own]);
        assert_eq!(time.has_run(pid), None);
        time.count(pid);
        std::thread::yield_now();
        let until = std::time::Instant::now() + std::time::Duration::from_millis(20);
        while std::time::Instant::now() < until {}
        assert_eq!(time.has_run(pid), Some(true));

        let (sender, ids) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ends.recv();
        });
        let mut time = VcpuTime::of(&[ids.recv().unwrap()]);
        // It may be on its way to the wait.
        let rests = (0..1000).any(|_| {
            time.count(pid);
            std::thread::sleep(std::time::Duration::from_millis(10));
            time.has_run(pid) == Some(false)
        });
        assert!(rests);
        drop(end);
        waits.join().unwrap();
        assert_eq!(time.has_run(pid), None, "its thread has ended");
        assert_eq!(VcpuTime { threads: vec![], run_ns: Some(0) }.has_run(pid), None);
    }
}

//! Whether the ports of this host have a carrier, while links are used.

use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use linerate_net::monitor::{InterfaceEvent, Monitor};

use crate::faults::chain;

/// Watches until it is dropped.
pub(crate) struct CarrierWatch {
    monitor: Option<Monitor>,
    thread: Option<JoinHandle<()>>,
}

impl CarrierWatch {
    /// Calls `changed` with the name of an interface, and whether it has a carrier now: at once, without any time-out.
    pub fn watch(changed: impl Fn(&str, bool) + Send + 'static) -> CarrierWatch {
        let (events, changes) = channel::<InterfaceEvent>();
        let monitor = Monitor::start(events)
            .inspect_err(|error| {
                let error = chain(error);
                tracing::warn!(error, "interfaces are not watched; lost links are found by time-outs");
            })
            .ok();
        // Ends with the monitor.
        let watching = move || {
            for change in &changes {
                changed(&change.name, change.usable);
            }
        };
        let thread = std::thread::Builder::new().name("carrier".into()).spawn(watching).ok();
        CarrierWatch { monitor, thread }
    }
}

impl Drop for CarrierWatch {
    fn drop(&mut self) {
        self.monitor = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

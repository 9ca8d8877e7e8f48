//! When a link is opened again after it was lost.

use std::time::Duration;

/// A link that is not open is tried again this often, and when its port has a carrier again.
const RETRY: Duration = Duration::from_millis(250);
/// A port's RDMA addresses follow its carrier this soon. soft-RoCE fails for good if it must send without one
/// (docs/rdma.md).
const RDMA_FOLLOWS: Duration = Duration::from_millis(500);

/// Decides when a link is opened again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reopening {
    /// The port had no carrier since the link was tried last.
    port_was_down: bool,
}

impl Reopening {
    /// The link is lost. `of_port`: the port of this host lost its carrier.
    pub fn lost(&mut self, of_port: bool) {
        self.port_was_down |= of_port;
    }

    /// The port has no carrier, so the link is not tried.
    pub fn port_is_down(&mut self) {
        self.port_was_down = true;
    }

    /// The port has a carrier, and the link is to be tried. If this returns a time, it is tried after that time, and
    /// only if the port still has a carrier.
    pub fn port_is_up(&mut self, tries_rdma: bool) -> Option<Duration> {
        let was_down = std::mem::take(&mut self.port_was_down);
        (was_down && tries_rdma).then_some(RDMA_FOLLOWS)
    }

    /// It was not opened. It is tried again after this time, or when its port has a carrier again.
    pub fn pause(&self) -> Duration {
        RETRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_waits_once_after_its_port_was_down() {
        let downs: [fn(&mut Reopening); 2] = [|one| one.lost(true), Reopening::port_is_down];
        for down in downs {
            let mut reopening = Reopening::default();
            down(&mut reopening);
            // Another loss does not make it forget.
            reopening.lost(false);
            assert_eq!(reopening.port_is_up(true), Some(RDMA_FOLLOWS), "its addresses are not there yet");
            assert_eq!(reopening.port_is_up(true), None);
            down(&mut reopening);
            assert_eq!(reopening.port_is_up(false), None, "TCP needs no wait");
        }
        let mut reopening = Reopening::default();
        reopening.lost(false);
        assert_eq!(reopening.port_is_up(true), None);
    }
}

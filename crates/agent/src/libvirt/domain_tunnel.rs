//! The tunnel of a migration.

use std::sync::Arc;
use std::time::Duration;

use linerate_api::{ErrorBody, TunnelEvent, TunnelRequest};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::Needs;
use crate::convert;
use crate::tunnel::{self, Begun};

/// The reason why a connection was refused comes so much later than the refusal, at most.
const IN_FLIGHT: Duration = Duration::from_millis(500);

/// A tunnel that is open until this is dropped, or until it ends.
pub struct DomainTunnel {
    begun: Option<Begun>,
    /// What went wrong with it first.
    trouble: Option<String>,
    /// It has ended. libvirt finds all its sockets closed then, and gives up.
    pub cut_off: bool,
}

impl DomainTunnel {
    pub async fn open(needs: &Arc<Needs>, request: TunnelRequest) -> Result<DomainTunnel, ErrorBody> {
        let tunnels = needs.tunnels.clone();
        let begin = move || tunnel::begin(&tunnels, &request).map_err(|fault| convert::error(&fault, None));
        let begun = tokio::task::spawn_blocking(begin).await;
        let begun = begun.map_err(|error| super::internal(format!("a defect in the agent: {error}")))??;
        Ok(DomainTunnel { begun: Some(begun), trouble: None, cut_off: false })
    }

    /// One that is open until its test ends it.
    #[cfg(test)]
    pub fn ready_now() -> DomainTunnel {
        DomainTunnel { begun: None, trouble: None, cut_off: false }
    }

    /// The next event. After the tunnel's end there is none, ever. May be dropped while it waits without losing an
    /// event.
    pub async fn next(&mut self) -> TunnelEvent {
        let event = match &mut self.begun {
            Some(begun) if !self.cut_off => begun.events.recv().await,
            _ => std::future::pending().await,
        };
        let Some(event) = event else {
            self.cut_off = true;
            return TunnelEvent::Warning { text: "the tunnel ended".to_owned() };
        };
        let trouble = match &event {
            TunnelEvent::Refused { reason } => Some(format!("a connection was refused: {reason}")),
            TunnelEvent::Ended { error } => Some(format!("the tunnel ended: {}", error.message)),
            _ => None,
        };
        self.cut_off |= matches!(event, TunnelEvent::Ended { .. });
        self.trouble = self.trouble.take().or(trouble);
        event
    }

    /// Waits until it is ready. `show` is given the events before that.
    pub async fn ready(&mut self, mut show: impl FnMut(TunnelEvent)) -> Result<(), ErrorBody> {
        loop {
            match self.next().await {
                TunnelEvent::Ready { .. } => return Ok(()),
                TunnelEvent::Ended { error } => return Err(error),
                event => show(event),
            }
        }
    }

    /// Cipher of its first connection; none in plain text.
    pub fn cipher(&self) -> Option<&'static str> {
        self.begun.as_ref().and_then(Begun::cipher)
    }

    /// An error of what uses it, with what went wrong with the tunnel itself.
    pub async fn explain(&mut self, error: ErrorBody) -> ErrorBody {
        while !self.cut_off && timeout(IN_FLIGHT, self.next()).await.is_ok() {}
        ErrorBody { message: error.message + &self.trouble(), ..error }
    }

    /// For the end of a sentence.
    pub fn trouble(&self) -> String {
        self.trouble.as_ref().map(|text| format!("; {text}")).unwrap_or_default()
    }
}

impl Drop for DomainTunnel {
    fn drop(&mut self) {
        // Its end waits for threads.
        if let (Some(begun), Ok(runtime)) = (self.begun.take(), Handle::try_current()) {
            runtime.spawn_blocking(move || drop(begun));
        }
    }
}

//! Taking RDMA connections at those listen addresses that belong to RDMA devices, now or later.

use std::sync::Arc;
use std::time::Duration;

use linerate_net::rdma::listen::Listener;

use crate::agent::Agent;

/// A new device is found within this, and a removed one is offered no longer than this.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

struct Ports {
    agent: Arc<Agent>,
    listener: Option<Listener>,
    /// Why there are none, if that was reported.
    reported: String,
}

/// As long as the agent runs. A host without RDMA does without.
pub(crate) fn listen(agent: &Arc<Agent>) {
    if agent.config.listen.is_empty() {
        return;
    }
    let mut ports = Ports { agent: agent.clone(), listener: None, reported: String::new() };
    ports.refresh();
    let checking = move || {
        loop {
            std::thread::sleep(POLL_INTERVAL);
            ports.refresh();
        }
    };
    if let Err(error) = std::thread::Builder::new().name("rdma-ports".into()).spawn(checking) {
        tracing::error!(%error, "cannot start a thread to look for RDMA devices");
    }
}

impl Ports {
    fn refresh(&mut self) {
        match &self.listener {
            Some(listener) => listener.check_again(),
            None => self.start(),
        }
        let addresses = self.listener.as_ref().map(Listener::addresses).unwrap_or_default();
        if self.agent.rdma.set(&addresses) {
            tracing::info!(?addresses, "RDMA connections are taken");
        }
    }

    fn start(&mut self) {
        let accepting = self.agent.clone();
        let accept = move |accepted| accepting.accept_rdma(accepted);
        match Listener::start(&self.agent.config.listen, accept) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => {
                let error = error.to_string();
                if error != self.reported {
                    tracing::info!("{error}");
                    self.reported = error;
                }
            }
        }
    }
}

//! What tests of several rooms need.

use std::net::SocketAddr;
use std::sync::Arc;

use linerate_guest::registry::Registry;
use tempfile::TempDir;

use crate::agent::Agent;
use crate::config::Config;
use crate::journal::Journal;

/// An agent that has its files in a folder and that nobody has started.
pub(crate) fn agent(dir: &TempDir, listen: &[SocketAddr]) -> Arc<Agent> {
    let path = |name: &str| dir.path().join(name);
    let file = path("agent.toml");
    let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
    let text = format!(
        "listen = {listen:?}\nstate_dir = {:?}\nrun_dir = {:?}\ntunnel_targets = [\"tcp:127.0.0.1:9\"]\n",
        path("state"),
        path("run")
    );
    std::fs::write(&file, text).unwrap();
    let config = Config::read(&file).unwrap();
    let journal = Journal::open(&config.state_dir).unwrap();
    let registry = Registry::open(&config.run_dir).unwrap();
    Arc::new(Agent::new(config, journal, registry))
}

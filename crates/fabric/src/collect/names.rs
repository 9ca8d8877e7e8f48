//! What names resolve to here. The resolver has no deadline of its own, so it is asked on a thread that may be left
//! behind.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use crate::model::Resolved;

/// A resolver that takes longer makes every connection slow.
const WAIT: Duration = Duration::from_secs(2);

/// Resolves all at the same time. `None` for a name that took too long.
pub fn resolve(names: &[String]) -> Vec<(String, Option<Resolved>)> {
    let waiting: Vec<_> = names.iter().map(|name| (name.clone(), begin(name.clone()))).collect();
    let deadline = std::time::Instant::now() + WAIT;
    let answer = |(name, answer): (String, mpsc::Receiver<Resolved>)| {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        (name, answer.recv_timeout(left).ok())
    };
    waiting.into_iter().map(answer).collect()
}

fn begin(name: String) -> mpsc::Receiver<Resolved> {
    let (send, receive) = mpsc::channel();
    let work = move || {
        let mut addresses: Vec<IpAddr> = (name.as_str(), 0)
            .to_socket_addrs()
            .map(|all| all.map(|one| one.ip()).collect())
            .unwrap_or_default();
        addresses.sort();
        addresses.dedup();
        let _ = send.send(Resolved { name, addresses });
    };
    // Without a thread there is no answer, as with a slow resolver.
    let _ = std::thread::Builder::new().name("resolve".into()).spawn(work);
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_resolves_and_nonsense_does_not() {
        let answers = resolve(&["localhost".into(), "no-such-host.invalid".into()]);
        let localhost = answers[0].1.as_ref().unwrap();
        assert!(localhost.addresses.contains(&[127, 0, 0, 1].into()), "{localhost:?}");
        assert!(answers[1].1.as_ref().is_none_or(|answer| answer.addresses.is_empty()));
    }
}

//! What a configuration must not have although it can be read: values that are out of bounds, or do not go together.

use linerate_api::TunnelAddress;

use super::{Config, DEFAULT_PORT, JOIN_PORT, Protection};

impl Config {
    /// What cannot be used, if there is something.
    pub(super) fn problem(&self) -> Option<String> {
        self.address_problem()
            .or_else(|| self.number_problem())
            .or_else(|| self.mapping_problem())
            .or_else(|| self.protection_problem())
            .or_else(|| self.section_problem())
            .or_else(|| self.relative_path())
    }

    fn address_problem(&self) -> Option<String> {
        for (key, addresses, port) in
            [("listen", &self.listen, DEFAULT_PORT), ("join_listen", &self.join_listen, JOIN_PORT)]
        {
            if let Some(address) = addresses.iter().find(|address| address.ip().is_unspecified()) {
                return Some(format!(
                    "{key} = \"{address}\" would answer on every address; name the addresses that other hosts may use"
                ));
            }
            if let Some(address) = addresses.iter().find(|address| address.port() == 0) {
                return Some(format!("{key} = \"{address}\" has no port; the usual one is {port}"));
            }
        }
        if let Some(address) = self.join_listen.iter().find(|address| self.listen.contains(address)) {
            return Some(format!("join_listen and listen both have {address}; join at another port"));
        }
        None
    }

    fn number_problem(&self) -> Option<String> {
        if !(2..=10).contains(&self.rdma_connect_s) {
            return Some("rdma_connect_s must be 2 to 10".into());
        }
        if !(1..=1024).contains(&self.tunnel_window_mib) || !(1..=16_384).contains(&self.tunnel_streams_max) {
            return Some("tunnel_window_mib must be 1 to 1024 and tunnel_streams_max 1 to 16384".into());
        }
        let held = 64..=1 << 20;
        if !held.contains(&self.held_state_of_host_mib) || !held.contains(&self.held_state_mib) {
            return Some("held_state_mib and held_state_of_host_mib must be 64 to 1048576".into());
        }
        if self.held_state_of_host_mib > self.held_state_mib {
            return Some(
                "held_state_of_host_mib must be at most held_state_mib, which it is a part of".into(),
            );
        }
        None
    }

    /// Of what leads from a name at another host to one here.
    fn mapping_problem(&self) -> Option<String> {
        let halves = |(from, to): &(&String, &String)| {
            !(from.starts_with('/') && to.starts_with('/')) || from.ends_with('/') != to.ends_with('/')
        };
        if let Some((from, to)) = self.paths.iter().find(halves) {
            return Some(format!(
                "paths has \"{from}\" = \"{to}\": name two absolute paths, both of a file, or both of a folder with a slash at the end"
            ));
        }
        let leads_to_monitors = |target: &&TunnelAddress| matches!(target, TunnelAddress::Unix(path) if path.starts_with(&self.domain_sockets));
        if let Some(target) = self.tunnel_targets.iter().find(leads_to_monitors) {
            return Some(format!(
                "tunnel_targets names {target} in domain_sockets: another host that reaches a domain's QMP socket owns its guest"
            ));
        }
        None
    }

    fn protection_problem(&self) -> Option<String> {
        let has_grants = self.peers.hosts.values().any(|rule| rule.grants.is_some());
        if self.security == Some(Protection::Insecure) && (has_grants || self.peers.grants.is_some()) {
            return Some(
                "grants are of hosts that prove who they are: with security = \"insecure\" none does".into(),
            );
        }
        if self.security == Some(Protection::Insecure) && self.certificate.is_some() {
            return Some(
                "there is a [certificate], which security = \"insecure\" does not use; take one of them out"
                    .into(),
            );
        }
        None
    }

    /// Of the sections that are checked by themselves, and of `[[qemu]]`.
    fn section_problem(&self) -> Option<String> {
        if let Some(name) = self.local.with_a_host_role() {
            return Some(format!(
                "[local] gives {name} the role member, which is one of hosts: viewer, operator or administrator"
            ));
        }
        if self.qemu.is_empty() {
            return Some("no [[qemu]] is named".into());
        }
        if let Some(what) = self.fleet.as_ref().and_then(|fleet| fleet.problem(self.security)) {
            return Some(what);
        }
        if let Some(what) = self.placement.problem() {
            return Some(format!("[placement] {what}"));
        }
        None
    }

    fn relative_path(&self) -> Option<String> {
        let relative = [&self.socket, &self.state_dir, &self.run_dir, &self.ram_dir, &self.domain_sockets];
        let relative = relative.into_iter().chain(&self.huge_ram_dir);
        let relative = relative.chain(&self.identity_dir).chain(&self.authority_dir);
        let relative = relative.chain(self.qemu.iter().map(|qemu| &qemu.binary));
        relative
            .into_iter()
            .find(|path| path.is_relative())
            .map(|path| format!("{} is not absolute", path.display()))
    }
}

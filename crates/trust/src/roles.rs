//! What a host of the cluster may ask of this one. Decisions only: no file and no connection is touched.
//!
//! | role | send | receive | look | tunnel | set_ports |
//! |---|---|---|---|---|---|
//! | member | yes | yes | yes | | |
//! | viewer | | | yes | | |
//! | operator | yes | yes | yes | yes | |
//! | administrator | yes | yes | yes | yes | yes |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::grants::Grants;
use crate::name::HostName;

/// One thing that a host may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Send guests to this host.
    Send,
    /// Receive guests of this host.
    Receive,
    /// Read inventories, and run `doctor` and `bench` against this host.
    Look,
    /// Connect through this host to the tunnel targets of its grants.
    Tunnel,
    /// Change the settings of this host's ports, on trial.
    SetPorts,
}

impl Permission {
    /// All permissions, in the order of the enum.
    pub const ALL: [Permission; 5] =
        [Permission::Send, Permission::Receive, Permission::Look, Permission::Tunnel, Permission::SetPorts];
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Permission::Send => "send",
            Permission::Receive => "receive",
            Permission::Look => "look",
            Permission::Tunnel => "tunnel",
            Permission::SetPorts => "set_ports",
        })
    }
}

/// A set of permissions with a name; the module has the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Of a host that joined and has no entry of its own.
    #[default]
    Member,
    /// Looks and changes nothing.
    Viewer,
    /// Looks, and opens tunnels to the sockets that are allowed.
    Operator,
    /// Has every permission, also to change settings of ports.
    Administrator,
}

impl Role {
    /// Whether the role has it.
    pub fn has(self, permission: Permission) -> bool {
        match self {
            Role::Administrator => true,
            Role::Operator => permission != Permission::SetPorts,
            Role::Member => matches!(permission, Permission::Send | Permission::Receive | Permission::Look),
            Role::Viewer => permission == Permission::Look,
        }
    }
}

/// What one host may do. In agent.toml; unknown keys are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRule {
    /// Where the permissions begin. Default: `member`.
    #[serde(default)]
    pub role: Role,
    /// Permissions besides those of the role.
    #[serde(default)]
    pub allow: BTreeSet<Permission>,
    /// Permissions that the host does not have, whatever role and `allow` say.
    #[serde(default)]
    pub deny: BTreeSet<Permission>,
    /// What its guests may open here, in place of the grants for all hosts.
    #[serde(default)]
    pub grants: Option<Grants>,
}

impl HostRule {
    fn has(&self, permission: Permission) -> bool {
        !self.deny.contains(&permission) && (self.role.has(permission) || self.allow.contains(&permission))
    }
}

/// That a host may not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host {host} may not {permission} here; add \"{permission}\" to `allow` of this host in agent.toml")]
pub struct Denied {
    /// Host whose request was refused.
    pub host: HostName,
    /// Permission that the request needs.
    pub permission: Permission,
}

/// What the hosts of the cluster may do here. In agent.toml; unknown keys are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Of a host without an entry in `hosts`. Default: `member`.
    #[serde(default)]
    pub default_role: Role,
    /// What guests may open here, unless the entry of the host that they come from says otherwise. Without any, the
    /// agent's own folders alone decide.
    #[serde(default)]
    pub grants: Option<Grants>,
    /// Hosts to which something else applies, by name.
    #[serde(default)]
    pub hosts: BTreeMap<HostName, HostRule>,
}

impl Policy {
    /// Whether the host has the permission here.
    pub fn check(&self, host: &HostName, permission: Permission) -> Result<(), Denied> {
        let has = self.hosts.get(host).map_or(self.default_role.has(permission), |rule| rule.has(permission));
        if has { Ok(()) } else { Err(Denied { host: host.clone(), permission }) }
    }

    /// What a guest from this host may open; `None` if grants are not used for it.
    pub fn grants(&self, host: &HostName) -> Option<&Grants> {
        self.own_grants(host).or(self.grants.as_ref())
    }

    /// The table of agent.toml that has them.
    pub fn grants_table(&self, host: &HostName) -> String {
        match self.own_grants(host) {
            Some(_) => format!("[peers.hosts.{host}.grants]"),
            None => "[peers.grants]".to_owned(),
        }
    }

    fn own_grants(&self, host: &HostName) -> Option<&Grants> {
        self.hosts.get(host)?.grants.as_ref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn host(name: &str) -> HostName {
        name.parse().unwrap()
    }

    fn permissions(policy: &Policy, name: &str) -> String {
        let has = |permission: &&Permission| policy.check(&host(name), **permission).is_ok();
        Permission::ALL.iter().filter(has).map(Permission::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn roles_have_the_permissions_of_the_table() {
        let table = include_str!("roles.rs");
        for (name, role) in [
            ("member", Role::Member),
            ("viewer", Role::Viewer),
            ("operator", Role::Operator),
            ("administrator", Role::Administrator),
        ] {
            let row = Permission::ALL.map(|permission| if role.has(permission) { "yes" } else { "" });
            let row: String = row.iter().map(|cell| format!(" {cell} |").replace("  |", " |")).collect();
            assert!(table.contains(&format!("//! | {name} |{row}\n")), "{name} |{row}");
        }
    }

    #[test]
    fn a_host_without_an_entry_sends_receives_and_looks() {
        let policy: Policy = toml::from_str("").unwrap();
        assert_eq!(permissions(&policy, "one"), "send receive look");
        assert_eq!(policy.grants(&host("one")), None);
    }

    #[test]
    fn an_entry_of_a_host_adds_and_takes() {
        let policy: Policy = toml::from_str(
            "default_role = \"viewer\"\n[hosts.one]\nallow = [\"set_ports\"]\ndeny = [\"send\"]\n[hosts.two]\n\
             role = \"administrator\"\nallow = [\"tunnel\"]\ndeny = [\"tunnel\"]\n",
        )
        .unwrap();
        assert_eq!(permissions(&policy, "one"), "receive look set_ports");
        assert_eq!(permissions(&policy, "two"), "send receive look set_ports", "deny comes before allow");
        assert_eq!(permissions(&policy, "three"), "look");
        let denied = policy.check(&host("three"), Permission::Send).unwrap_err();
        assert_eq!(
            denied.to_string(),
            "host three may not send here; add \"send\" to `allow` of this host in agent.toml"
        );
    }

    #[test]
    fn grants_of_a_host_replace_those_for_all() {
        let policy: Policy = toml::from_str(
            "[grants]\nfolders = [\"/srv\"]\n[hosts.one.grants]\nfolders = [\"/home/one\"]\n[hosts.two]\n",
        )
        .unwrap();
        let folders = |name| {
            policy.grants(&host(name)).unwrap().folders.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(folders("one"), ["/home/one"]);
        assert_eq!(folders("two"), ["/srv"]);
        assert_eq!(folders("three"), ["/srv"]);
        assert_eq!(policy.grants_table(&host("one")), "[peers.hosts.one.grants]");
        assert_eq!(policy.grants_table(&host("two")), "[peers.grants]");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let unknown = [
            "role = \"member\"",
            "default_role = \"root\"",
            "[hosts.one]\nalow = [\"send\"]",
            "[hosts.one]\nallow = [\"fly\"]",
            "[hosts.One]\nrole = \"member\"",
            "[grants]\nfolder = [\"/srv\"]",
        ];
        for text in unknown {
            assert!(toml::from_str::<Policy>(text).is_err(), "{text}");
        }
    }
}

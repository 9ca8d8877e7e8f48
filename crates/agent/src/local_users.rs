//! Roles of this host's users, for the local API.

use std::collections::BTreeMap;

use linerate_trust::roles::{Permission, Role};
use serde::Deserialize;

/// Users of this host other than root that may use the local API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalUsers {
    /// Role of a user, by name. It counts alone: the user's groups are not looked at.
    #[serde(default)]
    users: BTreeMap<String, Role>,
    /// Role of every member of a group, by name. Of several groups each counts.
    #[serde(default)]
    groups: BTreeMap<String, Role>,
}

impl LocalUsers {
    /// Whether no user and no group has a role, so that root alone may use the API.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// The first user or group whose role is one of hosts.
    pub fn with_a_host_role(&self) -> Option<&str> {
        let mut all = self.users.iter().chain(&self.groups);
        all.find(|(_, role)| **role == Role::Member).map(|(name, _)| name.as_str())
    }

    /// Whether a user with these groups has the permission.
    pub(crate) fn allow(&self, user: &str, groups: &[String], permission: Permission) -> bool {
        match self.users.get(user) {
            Some(role) => role.has(permission),
            None => groups.iter().filter_map(|group| self.groups.get(group)).any(|role| role.has(permission)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> LocalUsers {
        toml::from_str(
            "[users]\nalice = \"administrator\"\nbob = \"viewer\"\n[groups]\nops = \"operator\"\nall = \"viewer\"\n",
        )
        .unwrap()
    }

    #[test]
    fn a_users_own_role_counts_alone_and_of_groups_each() {
        let users = users();
        let groups = ["all".to_owned(), "ops".to_owned()];
        let allowed = |user: &str, groups: &[String]| {
            [Permission::Look, Permission::Send, Permission::SetPorts]
                .map(|permission| users.allow(user, groups, permission))
        };
        assert_eq!(allowed("alice", &[]), [true, true, true]);
        assert_eq!(allowed("bob", &groups), [true, false, false]);
        assert_eq!(allowed("carol", &groups), [true, true, false]);
        assert_eq!(allowed("carol", &groups[..1]), [true, false, false]);
        assert_eq!(allowed("carol", &["others".into()]), [false, false, false]);
    }
}

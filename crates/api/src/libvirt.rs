//! Domains of libvirt: what is asked beside what every migration has, and what is seen of libvirt meanwhile.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Mode;

/// Numbers of a job of libvirt by libvirt's names for them: bytes, milliseconds, pages per second.
pub type Job = BTreeMap<String, u64>;

/// The guest is a domain of this host's system libvirt. [`crate::MigrateRequest::guest`] is its name, ID or UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibvirtRequest {
    /// Socket of the destination's libvirt.
    #[serde(default = "default_remote_socket")]
    pub remote_socket: String,
    /// Of copied disks only what is above their backing files.
    #[serde(default)]
    pub above_backing_files: bool,
    /// Connections of QEMU side by side (multifd); one and no multifd if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// The domain as it shall run at the destination, in libvirt's XML; as it runs here if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xml: Option<String>,
    /// The domain as it shall be defined at the destination, in libvirt's XML; as it is defined here if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_xml: Option<String>,
}

fn default_remote_socket() -> String {
    LibvirtRequest::DEFAULT_REMOTE_SOCKET.to_owned()
}

impl LibvirtRequest {
    /// Where the destination's libvirt listens if nothing is said.
    pub const DEFAULT_REMOTE_SOCKET: &str = "/run/libvirt/libvirt-sock";
}

impl Default for LibvirtRequest {
    fn default() -> LibvirtRequest {
        LibvirtRequest {
            remote_socket: default_remote_socket(),
            above_backing_files: false,
            connections: None,
            xml: None,
            persistent_xml: None,
        }
    }
}

/// What happens to a domain of libvirt that is being moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum DomainEvent {
    /// How the domain's memory is moved. Always first.
    Mode {
        /// By Linerate or by libvirt.
        mode: Mode,
        /// Why RAM goes through QEMU's streams. Null if it is copied directly.
        reason: Option<String>,
        /// UUID of the domain.
        uuid: String,
    },
    /// Something that the operator should know.
    Warning {
        /// What is wrong, for the operator to read.
        text: String,
    },
    /// libvirt's own numbers, while it copies.
    Progress {
        /// By libvirt's names: bytes, milliseconds, pages per second.
        job: Job,
    },
    /// The domain is at the destination.
    Completed {
        /// Name of the domain.
        domain: String,
        /// The destination, as it was named.
        to: String,
        /// Its state there in libvirt's words, such as `running`.
        state: String,
        /// libvirt's last numbers, as in `progress`.
        job: Option<Job>,
    },
    /// From a newer agent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, EventKind, TunnelEvent};

    #[test]
    fn events_of_libvirt_and_of_the_tunnel_travel_in_the_events_of_a_migration() {
        let job = Job::from([("data_total".to_owned(), 7)]);
        let reason = Some("disks are copied".to_owned());
        for (kind, key) in [
            (EventKind::Domain(DomainEvent::Mode { mode: Mode::Stream, reason, uuid: "u".into() }), "mode"),
            (EventKind::Domain(DomainEvent::Progress { job }), "progress"),
            (EventKind::Tunnel(TunnelEvent::LinkUp { link: "eth1".into() }), "link_up"),
        ] {
            let event = Event { at_us: 3, kind };
            let text = serde_json::to_string(&event).unwrap();
            assert!(text.contains(&format!("\"event\":\"{key}\"")), "{text}");
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
        }
        // A later agent's.
        let unknown = r#"{"at_us":1,"kind":"domain","event":"asleep","since":3}"#;
        let event: Event = serde_json::from_str(unknown).unwrap();
        assert_eq!(event.kind, EventKind::Domain(DomainEvent::Unknown));
    }

    #[test]
    fn a_request_for_a_domain_has_few_fields() {
        let text = r#"{"guest":"web","to":"beta","libvirt":{}}"#;
        let request: crate::MigrateRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.libvirt, Some(LibvirtRequest::default()));
        // What the agent adds to a request is not a client's to say.
        let inside = r#"{"guest":"web","to":"beta","domain":{"stream":"/a","job":"/b","uuid":"u"}}"#;
        assert!(serde_json::from_str::<crate::MigrateRequest>(inside).is_err());
    }
}

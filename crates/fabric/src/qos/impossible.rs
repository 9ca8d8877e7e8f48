//! What a port cannot have: one variant for each cause, each with the way out.

use thiserror::Error;

/// What a port cannot have, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Impossible {
    #[error("{host} has no port {port}: `ports` must be as `linerate link show` names them on this host")]
    NoPort { host: String, port: String },
    /// No such port, and an adapter that could have it is in the other mode.
    #[error(
        "{host} has no port {port}: check the name with `linerate link show`; if it is a port of {device}, which is in InfiniBand mode, \
         where an adapter has no network port, on {host}: {command}, then restart the host"
    )]
    Infiniband { host: String, port: String, device: String, command: String },
    /// Windows is not set from here.
    #[error(
        "{host} runs Windows, which is not set from here: `linerate qos windows FILE` writes the PowerShell for it"
    )]
    Windows { host: String },
    /// The port has no DCB: there is nothing to set.
    #[error(
        "{port} of {host} ({kind}) has no DCB: no shares and no lossless priority can be set on it; migrations over TCP work \
         without, lossless RoCE needs an adapter whose driver has DCB. Take it out of `ports`"
    )]
    NoDcb { host: String, port: String, kind: String },
    /// DCB belongs to what is below.
    #[error(
        "{port} of {host} ({kind}) has no DCB of its own: put the ports below it into `ports` instead, {below}"
    )]
    Upper {
        host: String,
        port: String,
        kind: String,
        /// The ports below it.
        below: String,
    },
    /// A part of DCB is missing.
    #[error(
        "{port} of {host} reports nothing of its {what}: its driver has DCB only in part, or an older protocol (CEE); a newer driver \
         may help, else take it out of `ports`"
    )]
    Part { host: String, port: String, what: &'static str },
    /// The driver gives priorities to classes in its own way.
    #[error(
        "{port} of {host} cannot have it: driver ice takes a priority by DSCP only, and with the first one it gives every priority a class \
         of its own, where an intent has one for all that it does not name. Take it out of `ports`; migrations over TCP work without"
    )]
    FixedClasses { host: String, port: String },
    /// The driver classifies by nothing else.
    #[error(
        "{port} of {host} cannot have it: driver mlx5_core takes a priority by DSCP only, and [{class}] has none: give it a dscp (RoCE v2 \
         has one, v1 has not)"
    )]
    DscpOnly { host: String, port: String, class: &'static str },
    /// The firmware would overwrite whatever is set.
    #[error(
        "DCBX of {port} of {host} is spoken by the adapter's firmware, which takes what the switch says and overwrites what is set \
         here; on {host}: {command}"
    )]
    Firmware { host: String, port: String, command: String },
    /// The intent has more classes than the adapter.
    #[error("{port} of {host} has {most} traffic classes, the intent needs {wanted}: leave [storage] away")]
    Classes {
        host: String,
        port: String,
        /// How many it has.
        most: u8,
        /// How many are wanted.
        wanted: u8,
    },
    /// More lossless priorities than the adapter can hold buffers for.
    #[error(
        "{port} of {host} can have {most} lossless priorities, the intent has {wanted}: make fewer classes lossless"
    )]
    Lossless {
        host: String,
        port: String,
        /// How many it can have.
        most: u8,
        /// How many are wanted.
        wanted: u8,
    },
    /// The intent has RoCE, and the port no RDMA device.
    #[error(
        "{port} of {host} has no RDMA device, but the intent has RoCE: load the RDMA driver of {kind}, or set roce = \"none\" and \
         give [migration] a dscp"
    )]
    NoRdma { host: String, port: String, kind: String },
    /// The other RDMA over Ethernet.
    #[error(
        "{device}, the RDMA device of {port} of {host}, speaks iWARP, not RoCE; adapters that do both (driver ice) are turned on {host} by: \
         devlink dev param set pci/{address} name enable_iwarp value false cmode runtime && \
         devlink dev param set pci/{address} name enable_roce value true cmode runtime"
    )]
    Iwarp { host: String, port: String, device: String, address: String },
}

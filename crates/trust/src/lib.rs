//! Who a peer is and what it may do.
//!
//! * [`name`]: names of clusters and hosts. [`certificate`]: what a certificate says.
//! * [`authority`]: signs certificates and the revocation list. [`request`]: what it signs. [`token`]: who may join.
//! * [`bundle`] and [`revocation`]: whose certificates are accepted, and which are no longer.
//! * [`succession`]: how hosts change from one authority to the next.
//! * [`identity`]: all of it as one host has it, read again when files change. [`pem`]: an operator's own files.
//! * [`peer`]: verifies the chain of the other end. [`tls`]: rustls' configurations, which ask it.
//! * [`roles`] and [`grants`]: what a peer, and a guest that comes from it, may do.
//! * [`files`]: how keys are read and written.
//!
//! No cryptography is written here: rustls, webpki, rcgen and aws-lc-rs have it. Nothing here opens a socket or reads a
//! clock: callers pass the time. `docs/trust.md` says why it is as it is.

pub mod authority;
pub mod bundle;
pub mod certificate;
pub mod files;
pub mod grants;
pub mod identity;
pub mod name;
pub mod peer;
pub mod pem;
pub mod request;
pub mod revocation;
pub mod roles;
pub mod succession;
pub mod tls;
pub mod token;

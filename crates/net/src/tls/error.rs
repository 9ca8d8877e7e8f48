//! Why there is no TLS connection, or none any more.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use thiserror::Error;

/// Why a handshake or a TLS connection failed. It also travels inside an [`io::Error`], and [`TlsError::of`] finds it.
#[derive(Clone, Debug, Error)]
pub enum TlsError {
    /// TLS is required and this host has no certificate, see [`Tls::without_identity`](super::Tls::without_identity).
    #[error(
        "this host has no identity: join its cluster (`linerate join`), or name its certificate in the configuration"
    )]
    NoIdentity,
    /// At a TLS port: what came first is no TLS record.
    #[error("the peer spoke plain text to a TLS port; set `security` to the same on both hosts")]
    PeerSpokePlain,
    /// The answer to a TLS handshake is no TLS record.
    #[error(
        "the peer expects plain text, and this host speaks TLS; set `security` to the same on both hosts"
    )]
    PeerExpectsPlain,
    /// The answer to plain text is a TLS record.
    #[error(
        "the peer expects TLS, and this host speaks plain text; set `security` to the same on both hosts"
    )]
    PeerExpectsTls,
    /// At a plain port: a TLS handshake came.
    #[error("the peer spoke TLS to a plain port; set `security` to the same on both hosts")]
    PeerSpokeTls,
    /// This host does not accept the peer's certificate.
    #[error("the peer's certificate was refused: {}", reason(.0))]
    PeerRefused(CertificateError),
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The peer does not accept this host's certificate, or wants one.
    #[error("the peer refused this host's certificate: {0:?}")]
    RefusedByPeer(AlertDescription),
    /// The two ends agree on no application protocol.
    #[error("the peer speaks another application protocol (ALPN); compare the versions of the two agents")]
    Alpn,
    #[error("the TLS handshake did not end in time; {} ms were left for it", allowed.as_millis())]
    Timeout { allowed: Duration },
    /// More bytes than any honest handshake has.
    #[error("the TLS handshake was given up after {bytes} bytes")]
    TooLong { bytes: usize },
    #[error("the peer closed the connection in the TLS handshake")]
    ClosedInHandshake,
    /// The connection ended without `close_notify`, or inside a record.
    #[error("the TLS connection was cut: the peer sent no close_notify")]
    Truncated,
    /// A record was changed on the way, or is none.
    #[error("a TLS record arrived damaged: {0}")]
    Damaged(rustls::Error),
    /// Part of a message of the handshake layer came after the handshake.
    #[error("the peer sent a part of a TLS handshake message where no handshake is")]
    Fragmented,
    /// The peer ended the connection for a reason that no other variant names.
    #[error("the peer ended the TLS connection: {0:?}")]
    Alert(AlertDescription),
    /// This side has said that it ends.
    #[error("the TLS connection was closed on this side")]
    ClosedHere,
    #[error("TLS failed: {0}")]
    Protocol(rustls::Error),
    #[error("the connection failed: {0}")]
    Socket(#[source] Arc<io::Error>),
}

/// The verifier's own words where it has some.
fn reason(refused: &CertificateError) -> String {
    match refused {
        CertificateError::Other(other) => other.0.to_string(),
        other => other.to_string(),
    }
}

impl TlsError {
    /// The TLS error inside an error of a read or write, if it is one.
    pub fn of(error: &io::Error) -> Option<&TlsError> {
        error.get_ref()?.downcast_ref()
    }

    pub(super) fn socket(error: io::Error) -> TlsError {
        match TlsError::of(&error) {
            Some(inner) => inner.clone(),
            None => TlsError::Socket(Arc::new(error)),
        }
    }

    /// What `rustls` says of a handshake that failed.
    pub(super) fn in_handshake(error: rustls::Error) -> TlsError {
        use rustls::Error;
        match error {
            Error::InvalidCertificate(reason) => TlsError::PeerRefused(reason),
            Error::NoCertificatesPresented => TlsError::NoCertificate,
            Error::NoApplicationProtocol => TlsError::Alpn,
            Error::AlertReceived(alert) => TlsError::alert(alert),
            Error::DecryptError => TlsError::Damaged(error),
            other => TlsError::Protocol(other),
        }
    }

    /// What it says of records after the handshake.
    pub(super) fn in_traffic(error: rustls::Error) -> TlsError {
        use rustls::Error;
        match error {
            Error::AlertReceived(alert) => TlsError::alert(alert),
            Error::DecryptError | Error::InvalidMessage(_) | Error::PeerSentOversizedRecord => {
                TlsError::Damaged(error)
            }
            other => TlsError::Protocol(other),
        }
    }

    fn alert(alert: AlertDescription) -> TlsError {
        use AlertDescription as Alert;
        match alert {
            Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            // A signature does not fit, as of an authority with the same name and another key.
            | Alert::DecryptError
            | Alert::CertificateRequired => TlsError::RefusedByPeer(alert),
            Alert::NoApplicationProtocol => TlsError::Alpn,
            other => TlsError::Alert(other),
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        let kind = match &error {
            TlsError::Timeout { .. } => io::ErrorKind::TimedOut,
            TlsError::Truncated | TlsError::ClosedInHandshake => io::ErrorKind::ConnectionAborted,
            TlsError::ClosedHere => io::ErrorKind::BrokenPipe,
            TlsError::Socket(source) => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

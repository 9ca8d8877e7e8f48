//! One HTTP request over the UNIX socket.

use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::ClientError;
use crate::{BODY_BYTES_MAX, ErrorBody, code};

/// Sends a request and waits for the head of a good answer; any other becomes [`ClientError::Agent`].
pub(super) async fn send(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<Vec<u8>>,
    limit: Duration,
) -> Result<Response<Incoming>, ClientError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "linerate")
        .header("accept", "application/json")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .map_err(ClientError::Unsendable)?;
    let answer = within(limit, exchange(socket, request)).await?;
    if answer.status().is_success() { Ok(answer) } else { Err(refusal(answer, limit).await) }
}

async fn exchange(socket: &Path, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
    let stream = UnixStream::connect(socket).await.map_err(|source| connect_error(socket, source))?;
    check_server(socket, stream.peer_cred().ok().map(|server| server.uid()))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::Broken)?;
    // The connection has to be driven while the answer is read; it ends with the answer or with the stream.
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(ClientError::Broken)
}

/// An agent runs as root, or as the caller's user: any other may have put its own socket there.
fn check_server(socket: &Path, uid: Option<u32>) -> Result<(), ClientError> {
    let own = std::fs::metadata("/proc/self").ok().map(|about| about.uid());
    match uid {
        Some(uid) if uid != 0 && Some(uid) != own => {
            Err(ClientError::OtherUsers { path: socket.to_owned(), uid })
        }
        _ => Ok(()),
    }
}

/// The whole body of an answer.
pub(super) async fn whole_body(
    answer: Response<Incoming>,
    limit: Duration,
    bytes_max: usize,
) -> Result<Bytes, ClientError> {
    let body = Limited::new(answer.into_body(), bytes_max);
    let failed = |error| body_error(error, bytes_max);
    let collected = within(limit, async { body.collect().await.map_err(failed) }).await?;
    Ok(collected.to_bytes())
}

fn body_error(error: Box<dyn std::error::Error + Send + Sync>, bytes_max: usize) -> ClientError {
    match error.downcast::<hyper::Error>() {
        Ok(broken) => ClientError::Broken(*broken),
        Err(other) => {
            debug_assert!(other.is::<LengthLimitError>(), "Limited has no third kind of error");
            ClientError::AnswerTooLong { bytes_max }
        }
    }
}

async fn refusal(answer: Response<Incoming>, limit: Duration) -> ClientError {
    let status = answer.status().as_u16();
    match whole_body(answer, limit, BODY_BYTES_MAX).await {
        Ok(bytes) => ClientError::Agent { status, body: Box::new(read_error(status, &bytes)) },
        Err(error) => error,
    }
}

/// What the agent said, or, if that cannot be read (a framework's own 405, say), as much of it as fits a line.
fn read_error(status: u16, bytes: &[u8]) -> ErrorBody {
    serde_json::from_slice(bytes).unwrap_or_else(|_| {
        let text: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
        ErrorBody::new(code::UNREADABLE, format!("the agent answered HTTP {status}: {}", text.trim()))
            .with_hint("client and agent may be of different versions")
    })
}

fn connect_error(socket: &Path, source: io::Error) -> ClientError {
    let path = socket.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => ClientError::SocketAbsent { path },
        io::ErrorKind::ConnectionRefused => ClientError::NobodyListens { path },
        io::ErrorKind::PermissionDenied => ClientError::PermissionDenied { path },
        _ => ClientError::Connect { path, source },
    }
}

/// The future's result, or [`ClientError::Silent`].
pub(super) async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(limit, future).await.unwrap_or(Err(ClientError::Silent { limit }))
}

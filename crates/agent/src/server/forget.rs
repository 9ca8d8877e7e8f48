//! Guests and hosts that will never come back.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use linerate_api::{ForgetGuest, ForgetHost};

use super::{OfDrains, Refusal, Shared, blocking, parse};
use crate::drain::forget;

pub(super) async fn guest(
    State(agent): Shared,
    Extension(drains): OfDrains,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: ForgetGuest = parse(&body)?;
    let runtime = tokio::runtime::Handle::current();
    let forgotten = blocking(move || forget::guest(&agent, &drains, runtime, &request)).await?;
    Ok(Json(forgotten).into_response())
}

pub(super) async fn host(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: ForgetHost = parse(&body)?;
    Ok(Json(blocking(move || forget::host(&agent, &request)).await?).into_response())
}

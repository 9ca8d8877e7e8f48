//! The answering side: plays the parts that it is asked for, within its caps.

use std::sync::Arc;
use std::time::Duration;

use linerate_api::BenchCpu;
use linerate_core::{SessionId, Token};
use linerate_net::bench::document_channel::{DocumentChannel, DocumentError};
use linerate_net::bench::group::{self, TestThread};
use linerate_net::interfaces::{self, Interface};

use super::cpu::Cpus;
use super::documents::{
    ANSWER_WAIT, ChannelPart, LIMIT_MS_MAX, PeerPart, PeerReply, PeerRequest, Port, check_team, receive, send,
};
use super::error::BenchError;
use super::host::{Host, Measurement, Terms};
use super::ports;
use super::slots::{Attached, ConnectionSlots};
use super::stop::{Reason, Stop};
use crate::session::offer::endpoints;

/// How long the asking side may think between two requests.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// From the first document to the end, or until it is stopped. Says meanwhile whether the peer asked for `force`.
/// `begun`: migrations that had begun when the terms were made.
pub fn serve(
    host: &Arc<Host>,
    talk: &DocumentChannel,
    names: (SessionId, Token),
    stop: &Arc<Stop>,
    (terms, begun): (Terms, u64),
    forced: &mut bool,
) -> Result<(), BenchError> {
    let claimed = host.claim(names, stop, true);
    let migrating = terms.migrating || host.begun() != begun;
    // Read before it is refused: closing with something unread would take the refusal back.
    let force = match receive(talk, ANSWER_WAIT)? {
        PeerRequest::Open { force } => force,
        PeerRequest::Play { .. } => return Err(BenchError::Unexpected { asked: "nothing", got: "play" }),
    };
    *forced = force;
    let claim = claimed.and_then(|claim| {
        if force && !terms.may_force {
            return Err(BenchError::Force);
        }
        claim.measurement.allow(force);
        if migrating && !force {
            return Err(BenchError::Migration { host: "this host".into() });
        }
        Ok(claim)
    });
    let claim = claim.map_err(|error| refuse(talk, error))?;
    let ours = interfaces::list().map_err(|error| refuse(talk, error.into()))?;
    let ports: Vec<Port> = endpoints(&ours, &host.listens(), &host.rdma).iter().map(Port::from).collect();
    send(talk, &PeerReply::Ready { name: host.name.clone(), ports })?;
    let measurement = &claim.measurement;
    let Some(places) = &measurement.places else { return Ok(()) };
    let serving = Serving { talk, measurement, places, interfaces: ours, cpus: Cpus::read() };
    serving.serve().map_err(|error| refuse(talk, error))
}

/// Sends the error to the other side, if that still listens.
fn refuse(talk: &DocumentChannel, error: BenchError) -> BenchError {
    let body = linerate_api::ErrorBody::from(&error);
    let _ = send(talk, &PeerReply::Refused { code: body.code, message: body.message });
    error
}

struct Serving<'a> {
    talk: &'a DocumentChannel,
    measurement: &'a Measurement,
    places: &'a ConnectionSlots,
    interfaces: Vec<Interface>,
    cpus: Cpus,
}

impl Serving<'_> {
    fn serve(&self) -> Result<(), BenchError> {
        loop {
            match receive(self.talk, IDLE_MAX) {
                Ok(PeerRequest::Play { parts, cpu, limit_ms }) => self.play(&parts, cpu, limit_ms)?,
                Ok(PeerRequest::Open { .. }) => {
                    return Err(BenchError::Unexpected { asked: "ready", got: "open" });
                }
                Err(BenchError::DocumentChannel(DocumentError::Closed)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn play(&self, parts: &[ChannelPart], cpu: BenchCpu, limit_ms: u32) -> Result<(), BenchError> {
        check_team(&parts.iter().map(|one| one.part).collect::<Vec<PeerPart>>())?;
        let limit = Duration::from_millis(limit_ms.min(LIMIT_MS_MAX).into());
        let mut notes = Vec::new();
        let mut owners = Vec::new();
        let mut players = Vec::new();
        for (number, one) in parts.iter().enumerate() {
            let part = one.part.checked()?;
            let Some(attached) = self.places.take(one.channel, ANSWER_WAIT) else {
                return Err(BenchError::Unexpected { asked: "a channel that is there", got: "another" });
            };
            let numa = attached.own.map_or(-1, |own| ports::own(&self.interfaces, own.ip()).numa);
            let choice = self.cpus.choose(cpu, numa, number)?;
            notes.extend(choice.note.map(str::to_owned));
            owners.push((one.channel, attached.own));
            players.push(TestThread { wire: attached.connection, part, cpu: choice.cpu });
        }
        notes.dedup();
        send(self.talk, &PeerReply::Playing {})?;
        let (connections, score) = group::run(players, limit).map_err(|source| self.failed(source))?;
        for ((channel, own), connection) in owners.into_iter().zip(connections) {
            self.places.put(channel, Attached { connection, own });
        }
        let cpu_us = u64::try_from(score.cpu.as_micros()).unwrap_or(u64::MAX);
        send(
            self.talk,
            &PeerReply::TestResult { channels: score.played.iter().map(Into::into).collect(), cpu_us, notes },
        )
    }

    fn failed(&self, source: linerate_net::bench::TestError) -> BenchError {
        match self.measurement.stop.reason() {
            Some(Reason::Migration) => BenchError::Migration { host: "this host".into() },
            Some(Reason::Revoked) => BenchError::Revoked,
            _ => BenchError::TestConnection { link: "a connection".into(), source },
        }
    }
}

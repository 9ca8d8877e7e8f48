//! The frames that open a connection. Their layout is the same in all versions of the protocol.

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;
use crate::message::{Outcome, SessionId, Token};

/// First bytes of a HELLO's body: distinguishes an agent from other programs that may connect.
pub const HELLO_MAGIC: [u8; 4] = *b"LNRT";

/// Bytes of a HELLO in an RDMA connection request: what the connection manager leaves to its users.
pub const REQUEST_BYTES: usize = 56;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// The first control connection of a new session.
    ControlNew = 1,
    /// A further control connection, or one in place of a lost one.
    ControlJoin = 2,
    /// A channel for placed writes.
    Data = 3,
    /// A source that has committed, and still has its own copy, asks for the state of the session. It sends commit once
    /// more, for the message may never have come. Answered by an OUTCOME and closed.
    Query = 4,
    /// The source has rolled back: whatever waits for the session is to be given up, unless it is committed. Answered
    /// by an OUTCOME and closed.
    RolledBack = 5,
    /// The first control connection of a new session that carries byte streams and moves no guest.
    TunnelNew = 6,
    /// A channel for placed writes of the destination to the source. The source connects all the same.
    ReverseData = 7,
    /// The same from a source whose own hypervisor has ended: the guest cannot return to the source. Answered by an
    /// OUTCOME and closed.
    CommitAgain = 8,
    /// A host that has a guest for this one asks whether it takes guests at present. Session and token say nothing.
    /// Answered by WELCOME or REFUSE and closed.
    Arrival = 9,
    /// A source is about to let its paused guest run again, and asks whether the destination runs it. It commits
    /// nothing. Answered by an OUTCOME and closed.
    Resumes = 10,
    /// The same question from a source that knows that the destination has committed the guest: it keeps its own
    /// paused. It commits nothing. Answered by an OUTCOME and closed.
    Waits = 11,
    // Roles from 16 on have nothing to do with migrations.
    /// A measurement of the wires: its conversation. Not a session of a migration; `linerate-agent` has the documents.
    Bench = 16,
    /// A connection that is measured; HELLO names link and channel.
    BenchData = 17,
    /// A question of the doctor's; session and token say nothing.
    Doctor = 18,
    /// A question of a host to its cluster's authority: a new certificate, or the list of revoked ones. Session and
    /// token say nothing; the certificate says who asks.
    Membership = 19,
}

impl Role {
    /// All roles, for tables and tests.
    pub const ALL: [Role; 15] = [
        Role::ControlNew,
        Role::ControlJoin,
        Role::Data,
        Role::Query,
        Role::RolledBack,
        Role::TunnelNew,
        Role::ReverseData,
        Role::CommitAgain,
        Role::Arrival,
        Role::Resumes,
        Role::Waits,
        Role::Bench,
        Role::BenchData,
        Role::Doctor,
        Role::Membership,
    ];

    /// The role with this number.
    pub fn from_number(number: u8) -> Option<Role> {
        Self::ALL.into_iter().find(|role| *role as u8 == number)
    }
}

/// Who connects, to which session and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest version that the source speaks; at least 1.
    pub version_min: u16,
    /// Newest version that the source speaks.
    pub version_max: u16,
    /// The session that the connection belongs to.
    pub session: SessionId,
    /// What the connection is for.
    pub role: Role,
    /// The link that the connection runs over.
    pub link: u16,
    /// The channel, for [`Role::Data`], [`Role::ReverseData`] and [`Role::BenchData`]; 0 for the others.
    pub channel: u32,
    /// Shows that the peer belongs to the session. For the first connection of a session it is the one to be shown from
    /// then on.
    pub token: Token,
}

impl Hello {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Hello, DecodeError> {
        if reader.array("HELLO magic")? != HELLO_MAGIC {
            return Err(DecodeError::Magic);
        }
        let version_min = reader.u16("HELLO version_min")?;
        let version_max = reader.u16("HELLO version_max")?;
        check_versions(version_min, version_max)?;
        let session = SessionId(reader.array("HELLO session")?);
        let number = reader.u8("HELLO role")?;
        let role = Role::from_number(number)
            .ok_or(DecodeError::UnknownNumber { what: "HELLO role", number: number.into() })?;
        reader.reserved::<1>("HELLO reserved")?;
        let link = reader.u16("HELLO link")?;
        let channel = reader.u32("HELLO channel")?;
        let token = Token(reader.array("HELLO token")?);
        Ok(Hello { version_min, version_max, session, role, link, channel, token })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        check_versions(self.version_min, self.version_max)?;
        writer.bytes(&HELLO_MAGIC);
        writer.u16(self.version_min);
        writer.u16(self.version_max);
        writer.bytes(&self.session.0);
        writer.u8(self.role as u8);
        writer.reserved::<1>();
        writer.u16(self.link);
        writer.u32(self.channel);
        writer.bytes(&self.token.0);
        Ok(())
    }
}

impl Hello {
    /// The HELLO of a data channel, or of a connection that is measured, in the bytes that an RDMA connection request
    /// has for it. `None` if it is for anything else, or names a version that one byte does not hold. There is no room
    /// for the role: whose session it is decides.
    pub fn to_request(&self) -> Option<[u8; REQUEST_BYTES]> {
        let versions = [self.version_min.try_into().ok()?, self.version_max.try_into().ok()?];
        if !matches!(self.role, Role::Data | Role::BenchData) {
            return None;
        }
        let (channel, link) = (self.channel.to_le_bytes(), self.link.to_le_bytes());
        let fields = [&self.session.0[..], &self.token.0, &channel, &link, &versions];
        let mut bytes = [0; REQUEST_BYTES];
        for (place, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *place = *byte;
        }
        Some(bytes)
    }

    /// Reads what [`Hello::to_request`] made, as [`Role::Data`]. Transports pad requests, so what is behind them is
    /// passed over.
    pub fn from_request(bytes: &[u8]) -> Result<Hello, DecodeError> {
        let mut reader = Reader::new(bytes);
        let session = SessionId(reader.array("request session")?);
        let token = Token(reader.array("request token")?);
        let channel = reader.u32("request channel")?;
        let link = reader.u16("request link")?;
        let version_min = reader.u8("request version_min")?.into();
        let version_max = reader.u8("request version_max")?.into();
        check_versions(version_min, version_max)?;
        Ok(Hello { version_min, version_max, session, role: Role::Data, link, channel, token })
    }
}

fn check_versions(min: u16, max: u16) -> Result<(), DecodeError> {
    if min == 0 || min > max { Err(DecodeError::VersionRange { min, max }) } else { Ok(()) }
}

/// The destination takes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that is spoken from here on.
    pub version: u16,
    /// Highest number of a control message that has come in this session, without a gap; 0 for a new one. The source
    /// sends on from there.
    pub control_received: u64,
}

impl Welcome {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Welcome, DecodeError> {
        let version = reader.u16("WELCOME version")?;
        reader.reserved::<6>("WELCOME reserved")?;
        let control_received = reader.u64("WELCOME control_received")?;
        Ok(Welcome { version, control_received })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        writer.u16(self.version);
        writer.reserved::<6>();
        writer.u64(self.control_received);
        Ok(())
    }
}

pub(super) fn read_outcome(reader: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
    let number = reader.u8("outcome")?;
    let outcome = Outcome::from_number(number)
        .ok_or(DecodeError::UnknownNumber { what: "outcome", number: number.into() })?;
    reader.reserved::<3>("OUTCOME reserved")?;
    Ok(outcome)
}

pub(super) fn write_outcome(outcome: Outcome, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    writer.u8(outcome as u8);
    writer.reserved::<3>();
    Ok(())
}

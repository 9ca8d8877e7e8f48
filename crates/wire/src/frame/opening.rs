//! The frames that open a connection. Their layout is the same in all versions of the protocol.

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;
use crate::message::{Outcome, SessionId, Token};

/// First bytes of a HELLO's body: tells an agent from whatever else may connect.
pub const HELLO_MAGIC: [u8; 4] = *b"LNRT";

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
    /// Asks how the session ended; answered by an OUTCOME and closed.
    Query = 4,
    /// A question of the doctor's; session and token say nothing.
    Doctor = 5,
}

impl Role {
    /// All roles, for tables and tests.
    pub const ALL: [Role; 5] = [Role::ControlNew, Role::ControlJoin, Role::Data, Role::Query, Role::Doctor];

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
    /// The session.
    pub session: SessionId,
    /// What the connection is for.
    pub role: Role,
    /// The link that the connection runs over.
    pub link: u16,
    /// The channel, for [`Role::Data`]; 0 for the others.
    pub channel: u32,
    /// Shows that the peer belongs to the session. For [`Role::ControlNew`] it is the one to be shown from then on.
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

fn check_versions(min: u16, max: u16) -> Result<(), DecodeError> {
    if min == 0 || min > max { Err(DecodeError::VersionRange { min, max }) } else { Ok(()) }
}

/// The destination takes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that is spoken from here on.
    pub version: u16,
    /// Highest number of a control message that has come in this session, without a gap; 0 for a new one. The source sends
    /// on from there.
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

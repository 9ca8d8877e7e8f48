//! Frames: a fixed header, a body of known layout, and for some a payload of bulk bytes behind it.
//!
//! To read one: take [`HEADER_BYTES`] bytes, [`Header::decode`] them, take `body_length` bytes, [`Frame::decode`] them
//! (it checks the body's checksum), then take `payload_length` bytes to where they belong. A header that decodes can be
//! trusted and allocated for: its lengths are within the caps of its tag.
//!
//! To write one: [`Frame::encode`], or [`encode_write`], [`encode_ack`] and [`encode_control`] where the parts are at
//! hand and nothing should be copied. All of them clear the buffer first and leave header and body in it; the payload
//! is sent behind it from where it lies.

mod acknowledge;
mod header;
mod lists;
mod opening;
mod tag;
mod window;
mod write;

pub use acknowledge::{Ack, DAMAGED_MAX, encode_ack};
pub(crate) use acknowledge::{check_damaged, read_damaged};
pub use header::{HEADER_BYTES, Header};
pub use lists::{LISTS_MAX, ListNumber};
pub use opening::{HELLO_MAGIC, Hello, REQUEST_BYTES, Role, Welcome};
pub use tag::{CONTROL_BODY_MAX, PAYLOAD_BYTES_MAX, RUNS_MAX, SequenceRule, Tag};
pub use window::{Claim, Grant, SCRATCH_REGION};
pub(crate) use write::check_run;
pub use write::{Write, encode_write, encode_write_without_checksum};

use crate::codec::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};
use crate::fault::Fault;
use crate::message::{Message, Outcome};

/// What a frame says. Its number and its payload's length and checksum are in the [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a connection; from the source, which opens all of them.
    Hello(Hello),
    /// The destination takes the connection.
    Welcome(Welcome),
    /// The destination does not; it closes the connection behind this.
    Refuse(Fault),
    /// How a session ended, in answer to [`Role::Query`] and [`Role::RolledBack`].
    Outcome(Outcome),
    /// Which revocation lists the destination has, before WELCOME, REFUSE or OUTCOME. Only over TLS.
    Lists(Vec<ListNumber>),
    /// A placed write. The payload is the data runs' bytes, one after the other.
    Write(Write),
    /// A payload to be thrown away, acknowledged like a write.
    Probe,
    /// The source wants to write into a window by RDMA.
    Claim(Claim),
    /// What was applied of a channel, up to and with the header's sequence.
    Ack(Ack),
    /// The source may write into a window by RDMA.
    Grant(Grant),
    /// The control message with the header's sequence as its number.
    Control(Message),
    /// Control messages up to and with the header's sequence have come.
    ControlAck,
    /// A control connection without anything to say is alive.
    Keepalive,
}

impl Frame {
    /// Its number in the table.
    pub fn tag(&self) -> Tag {
        match self {
            Frame::Hello(_) => Tag::Hello,
            Frame::Welcome(_) => Tag::Welcome,
            Frame::Refuse(_) => Tag::Refuse,
            Frame::Outcome(_) => Tag::Outcome,
            Frame::Lists(_) => Tag::Lists,
            Frame::Write(_) => Tag::Write,
            Frame::Probe => Tag::Probe,
            Frame::Claim(_) => Tag::Claim,
            Frame::Ack(_) => Tag::Ack,
            Frame::Grant(_) => Tag::Grant,
            Frame::Control(_) => Tag::Control,
            Frame::ControlAck => Tag::ControlAck,
            Frame::Keepalive => Tag::Keepalive,
        }
    }

    /// Checks the body against the header and reads it.
    pub fn decode(header: &Header, body: &[u8]) -> Result<Frame, DecodeError> {
        header.check_body(body)?;
        let mut reader = Reader::new(body);
        let frame = match header.tag {
            Tag::Hello => Frame::Hello(Hello::read(&mut reader)?),
            Tag::Welcome => Frame::Welcome(Welcome::read(&mut reader)?),
            Tag::Refuse => Frame::Refuse(Fault::read(&mut reader)?),
            Tag::Outcome => Frame::Outcome(opening::read_outcome(&mut reader)?),
            Tag::Lists => Frame::Lists(lists::read(&mut reader)?),
            Tag::Write => Frame::Write(Write::read(&mut reader, header.payload_length)?),
            Tag::Probe => Frame::Probe,
            Tag::Claim => Frame::Claim(Claim::read(&mut reader)?),
            Tag::Grant => Frame::Grant(Grant::read(&mut reader)?),
            Tag::Ack => Frame::Ack(Ack::read(&mut reader, header.sequence)?),
            Tag::Control => Frame::Control(Message::read(&mut reader)?),
            Tag::ControlAck => Frame::ControlAck,
            Tag::Keepalive => Frame::Keepalive,
        };
        reader.finish(header.tag.name())?;
        Ok(frame)
    }

    /// Clears `out` and puts header and body into it. `sequence` must be one that the tag allows
    /// ([`Tag::sequence_rule`]); `payload_length` and `payload_checksum` are 0 but for WRITE and PROBE.
    pub fn encode(
        &self,
        sequence: u64,
        payload_length: u32,
        payload_checksum: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let envelope = Envelope { tag: self.tag(), sequence, payload_length, payload_checksum };
        envelope.fill(out, |writer| match self {
            Frame::Hello(hello) => hello.write(writer),
            Frame::Welcome(welcome) => welcome.write(writer),
            Frame::Refuse(fault) => fault.write(writer),
            Frame::Outcome(outcome) => opening::write_outcome(*outcome, writer),
            Frame::Lists(lists) => lists::write(lists, writer),
            Frame::Write(write) => write.write(writer, payload_length),
            Frame::Ack(ack) => acknowledge::write_damaged(&ack.damaged, sequence, writer),
            Frame::Claim(claim) => claim.write(writer),
            Frame::Grant(grant) => grant.write(writer),
            Frame::Control(message) => message.write(writer),
            Frame::Probe | Frame::ControlAck | Frame::Keepalive => Ok(()),
        })
    }
}

/// [`Frame::encode`] of a control message that is kept for sending again. `number` counts from 1.
pub fn encode_control(out: &mut Vec<u8>, number: u64, message: &Message) -> Result<(), EncodeError> {
    let envelope = Envelope { tag: Tag::Control, sequence: number, payload_length: 0, payload_checksum: 0 };
    envelope.fill(out, |writer| message.write(writer))
}

/// What the header says that does not follow from the body.
struct Envelope {
    tag: Tag,
    sequence: u64,
    payload_length: u32,
    payload_checksum: u32,
}

impl Envelope {
    /// Clears `out`, puts header and body into it. On an error it is left empty, so that no half frame is sent.
    fn fill(
        self,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Writer<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), EncodeError> {
        out.clear();
        out.resize(HEADER_BYTES, 0);
        let filled = body(&mut Writer::new(out)).and_then(|()| self.seal(out));
        if filled.is_err() {
            out.clear();
        }
        filled.map_err(EncodeError)
    }

    /// Writes the header into its place in front of the body.
    fn seal(self, out: &mut [u8]) -> Result<(), DecodeError> {
        let got = out.len();
        let Some((place, body)) = out.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(DecodeError::Truncated { what: "header", needed: HEADER_BYTES, left: got });
        };
        let header = Header {
            tag: self.tag,
            // Saturated, a length is over every cap and refused by the check below.
            body_length: u32::try_from(body.len()).unwrap_or(u32::MAX),
            payload_length: self.payload_length,
            payload_checksum: self.payload_checksum,
            body_checksum: crate::payload_checksum(body),
            sequence: self.sequence,
        };
        header.check_rules()?;
        *place = header.encode();
        Ok(())
    }
}

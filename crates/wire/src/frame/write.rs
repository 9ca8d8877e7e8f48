//! The placed write: which runs of which region the payload belongs to, and which runs become zero.

use super::tag::{PAYLOAD_BYTES_MAX, RUNS_MAX, Tag};
use super::{Envelope, Header};
use crate::codec::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};
use crate::message::Run;

/// Bytes of a run on the wire.
const RUN_BYTES: usize = 16;

/// Where a payload goes. Runs are as the peer named them: never empty, never over 64 bits, but not checked against the
/// region, which is not known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Number of the region that the runs are in.
    pub region: u16,
    /// Runs that the payload fills, in this order.
    pub data: Vec<Run>,
    /// Runs that become zero, and holes where they can. They cost nothing on the wire and may be of any length.
    pub zero: Vec<Run>,
    /// The payload was not summed: the transport's own checks have to do. Over TLS, and over RDMA where the operator
    /// chose it.
    pub without_checksum: bool,
}

impl Write {
    /// Reads the body of a WRITE into `self`, whose lists keep their memory: a receive loop decodes into one and the
    /// same value. Checks the body's checksum. After an error the content means nothing.
    pub fn decode_into(&mut self, header: &Header, body: &[u8]) -> Result<(), DecodeError> {
        if header.tag != Tag::Write {
            return Err(DecodeError::OtherFrame { expected: Tag::Write, got: header.tag });
        }
        header.check_body(body)?;
        let mut reader = Reader::new(body);
        self.refill(&mut reader, header.payload_length)?;
        reader.finish(Tag::Write.name())
    }

    pub(super) fn read(reader: &mut Reader<'_>, payload_length: u32) -> Result<Write, DecodeError> {
        let mut write = Write::default();
        write.refill(reader, payload_length)?;
        Ok(write)
    }

    fn refill(&mut self, reader: &mut Reader<'_>, payload_length: u32) -> Result<(), DecodeError> {
        self.data.clear();
        self.zero.clear();
        self.region = reader.u16("WRITE region")?;
        self.without_checksum = reader.flag("WRITE without_checksum")?;
        reader.reserved::<1>("WRITE reserved")?;
        let data_runs = usize::from(reader.u16("WRITE data_runs")?);
        let zero_runs = usize::from(reader.u16("WRITE zero_runs")?);
        check_count(data_runs + zero_runs)?;
        reader.check_left("WRITE runs", (data_runs + zero_runs) * RUN_BYTES)?;
        read_runs(reader, data_runs, &mut self.data)?;
        read_runs(reader, zero_runs, &mut self.zero)?;
        check_sum(&self.data, payload_length)
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>, payload_length: u32) -> Result<(), DecodeError> {
        check_sum(&self.data, payload_length)?;
        put_body(writer, self.region, &self.data, &self.zero, self.without_checksum)
    }
}

/// Clears `out` and puts the header and body of a WRITE into it. The payload, whose crc32c is given (0 without data
/// runs), is the data runs' bytes one after the other. Allocates only if `out` is too small.
pub fn encode_write(
    out: &mut Vec<u8>,
    sequence: u64,
    region: u16,
    data: &[Run],
    zero: &[Run],
    payload_checksum: u32,
) -> Result<(), EncodeError> {
    let payload_length = payload_length(data).inspect_err(|_| out.clear())?;
    let envelope = Envelope { tag: Tag::Write, sequence, payload_length, payload_checksum };
    envelope.fill(out, |writer| put_body(writer, region, data, zero, false))
}

/// [`encode_write`] of a payload without a checksum.
pub fn encode_write_without_checksum(
    out: &mut Vec<u8>,
    sequence: u64,
    region: u16,
    data: &[Run],
    zero: &[Run],
) -> Result<(), EncodeError> {
    let payload_length = payload_length(data).inspect_err(|_| out.clear())?;
    let envelope = Envelope { tag: Tag::Write, sequence, payload_length, payload_checksum: 0 };
    envelope.fill(out, |writer| put_body(writer, region, data, zero, true))
}

fn put_body(
    writer: &mut Writer<'_>,
    region: u16,
    data: &[Run],
    zero: &[Run],
    without_checksum: bool,
) -> Result<(), DecodeError> {
    check_count(data.len().saturating_add(zero.len()))?;
    writer.u16(region);
    writer.u8(without_checksum.into());
    writer.reserved::<1>();
    writer.count("WRITE data runs", data.len(), RUNS_MAX)?;
    writer.count("WRITE zero runs", zero.len(), RUNS_MAX)?;
    for run in data.iter().chain(zero) {
        check_run(*run)?;
        writer.u64(run.offset);
        writer.u64(run.length);
    }
    Ok(())
}

fn read_runs(reader: &mut Reader<'_>, count: usize, runs: &mut Vec<Run>) -> Result<(), DecodeError> {
    runs.reserve(count);
    for _ in 0..count {
        let run = Run { offset: reader.u64("run offset")?, length: reader.u64("run length")? };
        check_run(run)?;
        runs.push(run);
    }
    Ok(())
}

fn check_count(count: usize) -> Result<(), DecodeError> {
    match count {
        0 => Err(DecodeError::NoRuns),
        1..=RUNS_MAX => Ok(()),
        _ => Err(DecodeError::TooMany { what: "WRITE runs", count, max: RUNS_MAX }),
    }
}

pub(crate) fn check_run(run: Run) -> Result<(), DecodeError> {
    let Run { offset, length } = run;
    if length == 0 {
        return Err(DecodeError::EmptyRun { offset });
    }
    if offset.checked_add(length).is_none() {
        return Err(DecodeError::RunOverflow { offset, length });
    }
    Ok(())
}

/// Without this, a receiver would take the next frame's header for payload, or payload for a header.
fn check_sum(data: &[Run], payload: u32) -> Result<(), DecodeError> {
    let runs = sum(data);
    if runs == u64::from(payload) { Ok(()) } else { Err(DecodeError::PayloadSum { payload, runs }) }
}

fn payload_length(data: &[Run]) -> Result<u32, DecodeError> {
    let length = sum(data);
    u32::try_from(length).map_err(|_| DecodeError::PayloadLength {
        tag: Tag::Write,
        length,
        max: PAYLOAD_BYTES_MAX,
    })
}

fn sum(runs: &[Run]) -> u64 {
    runs.iter().fold(0, |sum, run| u64::saturating_add(sum, run.length))
}

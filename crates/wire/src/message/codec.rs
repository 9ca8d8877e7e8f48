//! Control messages on the wire: u16 number, u16 reserved, then the fields in the order of `docs/protocol.md`.

use super::mode::{read_mode, write_mode};
use super::parts::{
    read_endpoints, read_regions, read_touched, write_endpoints, write_regions, write_touched,
};
use super::{LastLook, Message, MessageTag, StreamNote, StreamSettings};
use crate::codec::{Reader, Writer};
use crate::error::{DecodeError, EncodeError};
use crate::fault::Fault;
use crate::frame::{DAMAGED_MAX, check_damaged, read_damaged};

/// Most bytes of a guest's name.
pub const GUEST_NAME_BYTES_MAX: usize = 255;
/// Most bytes of a guest description.
pub const DESCRIPTION_BYTES_MAX: usize = 1 << 20;
/// Most bytes of the description of a guest's disks.
pub const DISKS_BYTES_MAX: usize = 1 << 20;
/// Most parallel channels of a hypervisor's stream; QEMU's own limit.
pub const STREAM_CHANNELS_MAX: u16 = 255;
/// Most bytes of device state in one message.
pub const DEVICE_STATE_BYTES_MAX: usize = 256 << 10;

impl Message {
    /// Appends the message to `out`. What is in `out` behind its old length after an error means nothing.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Ok(self.write(&mut Writer::new(out))?)
    }

    /// Reads a message that fills all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        let mut reader = Reader::new(bytes);
        let message = Message::read(&mut reader)?;
        reader.finish(message.name())?;
        Ok(message)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
        let number = reader.u16("message number")?;
        let tag = MessageTag::from_number(number).ok_or(DecodeError::UnknownMessage { number })?;
        reader.reserved::<2>("message reserved")?;
        Message::read_fields(tag, reader)
    }

    fn read_fields(tag: MessageTag, reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
        Ok(match tag {
            MessageTag::Offer => read_offer(reader)?,
            MessageTag::Admitted => Message::Admitted { endpoints: read_endpoints(reader)? },
            MessageTag::Prepare => Message::Prepare,
            MessageTag::Prepared => {
                Message::Prepared { regions: read_regions(reader)?, touched: read_touched(reader)? }
            }
            MessageTag::RoundMark => {
                Message::RoundMark { round: reader.u32("round")?, bytes: reader.u64("round bytes")? }
            }
            MessageTag::Fence => Message::Fence { channel: reader.u32("channel")? },
            MessageTag::Fenced => read_fenced(reader)?,
            MessageTag::Stopped => Message::Stopped {
                was_running: reader.flag("ran")?,
                disks: reader.long_text("disks", DISKS_BYTES_MAX)?,
            },
            MessageTag::RamComplete => Message::RamComplete { digest: read_digest(reader)? },
            MessageTag::RamSealed => Message::RamSealed,
            MessageTag::DeviceState => {
                Message::DeviceState { bytes: reader.long_bytes("device state", DEVICE_STATE_BYTES_MAX)? }
            }
            MessageTag::DeviceStateEnd => {
                Message::DeviceStateEnd { total: reader.u64("device state total")? }
            }
            MessageTag::Loaded => Message::Loaded,
            MessageTag::Commit => Message::Commit,
            MessageTag::TakenOver => {
                Message::TakenOver { resume_us: reader.u64("resume_us")?, cpu_us: reader.u64("cpu_us")? }
            }
            MessageTag::Finished => Message::Finished,
            MessageTag::LastLook => Message::LastLook(LastLook::read(reader)?),
            MessageTag::Abort => Message::Abort(Fault::read(reader)?),
            MessageTag::Aborted => Message::Aborted,
            MessageTag::StreamsPrepared => Message::StreamsPrepared(read_stream_settings(reader)?),
            MessageTag::Stream => {
                Message::Stream { stream: reader.u16("stream")?, note: StreamNote::read(reader)? }
            }
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        writer.u16(self.tag() as u16);
        writer.reserved::<2>();
        match self {
            Message::Offer { guest, description, mode } => {
                writer.short_text("guest name", guest, GUEST_NAME_BYTES_MAX)?;
                writer.long_bytes("guest description", description.as_bytes(), DESCRIPTION_BYTES_MAX)?;
                write_mode(mode, writer)?;
            }
            Message::Admitted { endpoints } => write_endpoints(endpoints, writer)?,
            Message::Prepared { regions, touched } => {
                write_regions(regions, writer)?;
                write_touched(touched, writer)?;
            }
            Message::RoundMark { round, bytes } => {
                writer.u32(*round);
                writer.u64(*bytes);
            }
            Message::Fence { channel } => writer.u32(*channel),
            Message::Fenced { channel, applied, damaged } => {
                write_fenced(*channel, *applied, damaged, writer)?;
            }
            Message::Stopped { was_running, disks } => {
                writer.u8((*was_running).into());
                writer.long_bytes("disks", disks.as_bytes(), DISKS_BYTES_MAX)?;
            }
            Message::RamComplete { digest } => write_digest(*digest, writer),
            Message::DeviceState { bytes } => {
                writer.long_bytes("device state", bytes, DEVICE_STATE_BYTES_MAX)?;
            }
            Message::DeviceStateEnd { total } => writer.u64(*total),
            Message::TakenOver { resume_us, cpu_us } => {
                writer.u64(*resume_us);
                writer.u64(*cpu_us);
            }
            Message::LastLook(look) => look.write(writer)?,
            Message::Abort(fault) => fault.write(writer)?,
            Message::Stream { stream, note } => {
                writer.u16(*stream);
                note.write(writer)?;
            }
            Message::StreamsPrepared(settings) => {
                write_stream_channels(settings.channels, writer)?;
                writer.u8(settings.return_path.into());
                writer.u8(settings.zero_pages_in_channels.into());
            }
            Message::Prepare
            | Message::RamSealed
            | Message::Loaded
            | Message::Commit
            | Message::Finished
            | Message::Aborted => {}
        }
        Ok(())
    }
}

fn read_offer(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    let guest = reader.short_text("guest name", GUEST_NAME_BYTES_MAX)?;
    let description = reader.long_text("guest description", DESCRIPTION_BYTES_MAX)?;
    let mode = read_mode(reader)?;
    Ok(Message::Offer { guest, description, mode })
}

fn read_fenced(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    let channel = reader.u32("channel")?;
    let applied = reader.u64("applied")?;
    let count = reader.u16("damaged count")?;
    let damaged = read_damaged(reader, count, applied)?;
    Ok(Message::Fenced { channel, applied, damaged })
}

fn write_fenced(
    channel: u32,
    applied: u64,
    damaged: &[u64],
    writer: &mut Writer<'_>,
) -> Result<(), DecodeError> {
    check_damaged(damaged, applied)?;
    writer.u32(channel);
    writer.u64(applied);
    writer.count("damaged frames", damaged.len(), DAMAGED_MAX)?;
    damaged.iter().for_each(|sequence| writer.u64(*sequence));
    Ok(())
}

fn read_digest(reader: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    let present = reader.flag("digest present")?;
    present.then(|| reader.u64("digest")).transpose()
}

fn write_digest(digest: Option<u64>, writer: &mut Writer<'_>) {
    writer.u8(digest.is_some().into());
    if let Some(digest) = digest {
        writer.u64(digest);
    }
}

pub(super) fn read_stream_channels(reader: &mut Reader<'_>) -> Result<u16, DecodeError> {
    let channels = reader.u16("stream channels")?;
    check_stream_channels(channels)?;
    Ok(channels)
}

pub(super) fn write_stream_channels(channels: u16, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    check_stream_channels(channels)?;
    writer.u16(channels);
    Ok(())
}

fn check_stream_channels(channels: u16) -> Result<(), DecodeError> {
    if channels > STREAM_CHANNELS_MAX {
        let (count, max) = (channels.into(), STREAM_CHANNELS_MAX.into());
        return Err(DecodeError::TooMany { what: "stream channels", count, max });
    }
    Ok(())
}

fn read_stream_settings(reader: &mut Reader<'_>) -> Result<StreamSettings, DecodeError> {
    Ok(StreamSettings {
        channels: read_stream_channels(reader)?,
        return_path: reader.flag("return path")?,
        zero_pages_in_channels: reader.flag("zero pages in channels")?,
    })
}

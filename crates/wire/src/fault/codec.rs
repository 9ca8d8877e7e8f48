//! A fault on the wire, in REFUSE frames and Abort messages: u16 code, u8 step, u8 side, u16 length, detail in UTF-8.

use super::{Code, Fault, Side, Step};
use crate::codec::{Reader, Writer};
use crate::error::DecodeError;

impl Fault {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Fault, DecodeError> {
        let code = reader.u16("fault code")?;
        let step = reader.u8("fault step")?;
        let side = reader.u8("fault side")?;
        Ok(Fault {
            code: Code::from_number(code).ok_or_else(|| unknown("fault code", code))?,
            step: Step::from_number(step).ok_or_else(|| unknown("fault step", step))?,
            side: Side::from_number(side).ok_or_else(|| unknown("fault side", side))?,
            detail: reader.short_text("fault detail", Fault::DETAIL_BYTES_MAX)?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        writer.u16(self.code as u16);
        writer.u8(self.step as u8);
        writer.u8(self.side as u8);
        // Cut instead of refused: a fault must get through, however long its words are.
        let max = Fault::DETAIL_BYTES_MAX;
        let detail = (0..=max).rev().find_map(|end| self.detail.get(..end)).unwrap_or_default();
        writer.short_text("fault detail", detail, max)
    }
}

fn unknown(what: &'static str, number: impl Into<u64>) -> DecodeError {
    DecodeError::UnknownNumber { what, number: number.into() }
}

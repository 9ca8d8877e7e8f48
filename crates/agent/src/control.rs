//! Control frames of both bodies: put on a path, and named in traces.

use linerate_core::control::Outgoing as Frame;
use linerate_net::control::{ControlError, ControlPath};
use linerate_wire::frame::encode_control;

/// Puts a frame on a path.
pub fn send(path: &ControlPath, frame: Frame) -> Result<(), ControlError> {
    match frame {
        Frame::Message { sequence, message } => {
            let mut bytes = Vec::new();
            encode_control(&mut bytes, sequence, &message)?;
            path.sender().send(&bytes)
        }
        Frame::Acknowledgement { through } => path.sender().acknowledge(through),
    }
}

/// What a control frame is, for traces.
pub fn variant(frame: &Frame) -> String {
    match frame {
        Frame::Message { sequence, message } => format!("{:?} {sequence}", message.tag()),
        Frame::Acknowledgement { through } => format!("acknowledge {through}"),
    }
}

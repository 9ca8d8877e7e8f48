//! A control message from any bytes: whatever decodes encodes to the same bytes again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_wire::message::Message;

fuzz_target!(|input: &[u8]| {
    let Ok(message) = Message::decode(input) else { return };
    let mut again = Vec::new();
    message.encode(&mut again).expect("what was taken can be sent");
    assert_eq!(again, input, "a message has one encoding");
});

//! Header and body from any bytes: whatever decodes is within its caps and encodes to the same bytes again.
//!
//! An input's checksums are put right first (each alone can be left as it is), otherwise almost no input would come
//! further than the header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_wire::frame::{Frame, HEADER_BYTES, Header};
use linerate_wire::payload_checksum;

fuzz_target!(|input: &[u8]| {
    // The first byte says which checksums stay as the input has them.
    let Some((keep, input)) = input.split_first() else { return };
    let Some((head, body)) = input.split_first_chunk::<HEADER_BYTES>() else { return };
    let mut head = *head;
    if keep & 1 == 0 {
        head[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[24..28].copy_from_slice(&payload_checksum(body).to_le_bytes());
    }
    if keep & 2 == 0 {
        let own = payload_checksum(&head[..28]);
        head[28..].copy_from_slice(&own.to_le_bytes());
    }
    check(&head, body);
});

fn check(head: &[u8; HEADER_BYTES], body: &[u8]) {
    let Ok(header) = Header::decode(head) else { return };
    assert!(header.body_length <= header.tag.body_length_max());
    assert!(header.payload_length <= header.tag.payload_length_max());
    assert_eq!(header.encode(), *head, "a header has one encoding");
    let Ok(frame) = Frame::decode(&header, body) else { return };
    let mut again = Vec::new();
    frame
        .encode(header.sequence, header.payload_length, header.payload_checksum, &mut again)
        .expect("what was taken can be sent");
    assert_eq!(again, [head.as_slice(), body].concat(), "a frame has one encoding");
}

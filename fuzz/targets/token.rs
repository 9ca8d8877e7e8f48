//! A join token from any text: whatever is read is written again as the same token.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_trust::token::{TOKEN_CHARACTERS, Token};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(token) = text.parse::<Token>() else { return };
    let line = token.line();
    assert_eq!(line.len(), TOKEN_CHARACTERS);
    assert_eq!(line, text.trim().to_ascii_lowercase(), "a token has one spelling, apart from case");
});

//! Tokens as the journal keeps them.

use linerate_core::Token;

/// A token as hexadecimal digits.
pub(crate) fn token_text(token: &Token) -> String {
    token.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The token of these digits. What is no pair of digits is a zero.
pub(crate) fn parse_token(text: &str) -> Token {
    let mut token = Token([0; 32]);
    for (place, byte) in token.0.iter_mut().enumerate() {
        let digits = text.get(2 * place..2 * place + 2);
        *byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(0);
    }
    token
}

//! What a journal as a whole says, and both recoveries step by step.

//! Names of modes and phases in the records.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::ran_here::RanHere;

/// Whether the guest ran at its source after commit. An earlier agent wrote `true` for what CPU time had shown, too.
pub(super) fn ran_here<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RanHere, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Bool(true) => Ok(RanHere::Maybe),
        Value::Bool(false) => Ok(RanHere::No),
        name => RanHere::deserialize(name).map_err(D::Error::custom),
    }
}

/// A mode by its name. A record of a mode that this agent does not know is not read.
pub(super) mod mode_name {
    use linerate_core::ModeTag;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(mode: &ModeTag, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModeTag, D::Error> {
        known(&String::deserialize(deserializer)?)
    }

    fn known<E: Error>(name: &str) -> Result<ModeTag, E> {
        ModeTag::from_name(name).ok_or_else(|| E::custom(format!("this release does not know mode {name}")))
    }

    pub mod optional {
        use super::{Deserialize, Deserializer, ModeTag, Serializer, known};

        pub fn serialize<S: Serializer>(mode: &Option<ModeTag>, serializer: S) -> Result<S::Ok, S::Error> {
            match mode {
                Some(mode) => serializer.serialize_some(mode.name()),
                None => serializer.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModeTag>, D::Error> {
            Option::<String>::deserialize(deserializer)?.as_deref().map(known).transpose()
        }
    }
}

macro_rules! phase_names {
    ($module:ident, $phase:ident, $($variant:ident = $name:literal),*) => {
        pub(super) mod $module {
            use linerate_core::journal::$phase;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub fn serialize<S: Serializer>(phase: &$phase, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(match phase { $($phase::$variant => $name),* })
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$phase, D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    $($name => Ok($phase::$variant),)*
                    other => Err(D::Error::unknown_variant(other, &[$($name),*])),
                }
            }
        }
    };
}
phase_names!(
    source_phase,
    SourcePhase,
    Started = "started",
    CommitSent = "commit_sent",
    ResumingHere = "taking_back",
    Finished = "finished",
    RolledBack = "rolled_back"
);
phase_names!(
    destination_phase,
    DestinationPhase,
    Started = "started",
    Loaded = "loaded",
    Committed = "committed",
    Running = "running",
    Aborted = "aborted",
    Returned = "returned",
    Finished = "finished"
);

//! QEMU's command line as a list of options, and the table of the options that Linerate knows.

/// Whether an option takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// It stands alone.
    Flag,
    /// The next argument is its value, whatever it looks like.
    Value,
}

/// What is done with an option when a twin is built from another host's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Taken over; its value names no file.
    Keep,
    /// Taken over; its value is text for the guest and may hold anything.
    Text,
    /// Left out: it concerns the source's process only, or is set by Linerate itself.
    Drop,
    /// Taken over after its own check and rewriting, see `twin`.
    Special,
}

use Arity::{Flag, Value};
use Rule::{Drop, Keep, Special, Text};

/// Every option that may stand in a description. An option that is not here is refused by name: nothing that runs programs,
/// reads configuration, or opens files other than those that the twin's rules know can get in by being new or forgotten.
pub const KNOWN: &[(&str, Arity, Rule)] = &[
    ("name", Value, Keep),
    ("uuid", Value, Keep),
    ("cpu", Value, Keep),
    ("smp", Value, Keep),
    ("m", Value, Keep),
    ("accel", Value, Keep),
    ("enable-kvm", Flag, Keep),
    ("numa", Value, Keep),
    ("overcommit", Value, Keep),
    ("rtc", Value, Keep),
    ("k", Value, Keep),
    ("vga", Value, Keep),
    ("usb", Flag, Keep),
    ("usbdevice", Value, Special),
    ("nodefaults", Flag, Keep),
    ("no-user-config", Flag, Keep),
    ("no-reboot", Flag, Keep),
    ("no-shutdown", Flag, Keep),
    ("no-acpi", Flag, Keep),
    ("no-hpet", Flag, Keep),
    ("no-fd-bootchk", Flag, Keep),
    ("action", Value, Keep),
    ("watchdog-action", Value, Keep),
    ("msg", Value, Keep),
    ("only-migratable", Flag, Keep),
    ("sandbox", Value, Keep),
    ("seed", Value, Keep),
    ("append", Value, Text),
    ("smbios", Value, Special),
    ("fw_cfg", Value, Special),
    ("global", Value, Special),
    ("machine", Value, Special),
    ("M", Value, Special),
    ("boot", Value, Special),
    ("icount", Value, Special),
    ("device", Value, Special),
    ("object", Value, Special),
    ("mem-path", Value, Special),
    ("drive", Value, Special),
    ("blockdev", Value, Special),
    ("cdrom", Value, Special),
    ("hda", Value, Special),
    ("hdb", Value, Special),
    ("hdc", Value, Special),
    ("hdd", Value, Special),
    ("pflash", Value, Special),
    ("kernel", Value, Special),
    ("initrd", Value, Special),
    ("bios", Value, Special),
    ("netdev", Value, Special),
    ("nic", Value, Special),
    ("net", Value, Special),
    ("chardev", Value, Special),
    ("mon", Value, Special),
    ("serial", Value, Special),
    ("parallel", Value, Special),
    ("debugcon", Value, Special),
    ("monitor", Value, Special),
    ("audiodev", Value, Special),
    ("display", Value, Special),
    ("nographic", Flag, Special),
    ("vnc", Value, Special),
    ("qmp", Value, Drop),
    ("qmp-pretty", Value, Drop),
    ("pidfile", Value, Drop),
    ("daemonize", Flag, Drop),
    ("incoming", Value, Drop),
    ("S", Flag, Drop),
    ("L", Value, Drop),
    ("mem-prealloc", Flag, Drop),
    ("D", Value, Drop),
    ("d", Value, Drop),
];

/// One option of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Without its dash or dashes.
    pub name: String,
    /// Its value, if it takes one.
    pub value: Option<String>,
}

/// Why a command line cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// An option is not in [`KNOWN`].
    #[error("the QEMU option -{0} is not among those that linerate takes over from another host")]
    Unknown(String),
    /// The value of an option is missing.
    #[error("the QEMU option -{0} has no value")]
    ValueMissing(String),
    /// An argument that is no option: QEMU takes it for a disk image.
    #[error("the argument {0:?} is no option (QEMU takes it for a disk): write it as -drive file=…")]
    Bare(String),
}

/// The entry of an option.
pub fn known(name: &str) -> Option<(Arity, Rule)> {
    KNOWN.iter().find(|(known, _, _)| *known == name).map(|&(_, arity, rule)| (arity, rule))
}

/// Splits arguments (without the program's name) strictly: what is not in the table is an error.
pub fn split_strict(arguments: &[String]) -> Result<Vec<Argument>, ArgvError> {
    let mut rest = arguments.iter();
    let mut options = Vec::new();
    while let Some(text) = rest.next() {
        let name = option_name(text).ok_or_else(|| ArgvError::Bare(text.clone()))?;
        let (arity, _) = known(name).ok_or_else(|| ArgvError::Unknown(name.chars().take(80).collect()))?;
        let value = match arity {
            Flag => None,
            Value => Some(rest.next().cloned().ok_or_else(|| ArgvError::ValueMissing(name.into()))?),
        };
        options.push(Argument { name: name.into(), value });
    }
    Ok(options)
}

/// Splits the arguments of a QEMU that runs here: options that are not in the table take what follows as their value unless
/// that looks like an option. Good for looking, not for building a command line.
pub fn split_loose(arguments: &[String]) -> Vec<Argument> {
    let mut rest = arguments.iter().peekable();
    let mut options = Vec::new();
    while let Some(text) = rest.next() {
        let Some(name) = option_name(text) else { continue };
        let value = match known(name) {
            Some((Flag, _)) => None,
            Some((Value, _)) => rest.next().cloned(),
            None => rest.next_if(|next| !next.starts_with('-')).cloned(),
        };
        options.push(Argument { name: name.into(), value });
    }
    options
}

// One dash or two are the same to QEMU.
fn option_name(text: &str) -> Option<&str> {
    let name = text.strip_prefix('-')?;
    Some(name.strip_prefix('-').unwrap_or(name)).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn values_that_look_like_options_stay_values() {
        let options = split_strict(&words("-append -D --nodefaults -m 64")).unwrap();
        assert_eq!(options.len(), 3);
        assert_eq!(options[0], Argument { name: "append".into(), value: Some("-D".into()) });
        assert_eq!(options[1].name, "nodefaults");
    }

    #[test]
    fn unknown_bare_and_cut_off_are_told() {
        assert_eq!(split_strict(&words("-plugin x")), Err(ArgvError::Unknown("plugin".into())));
        assert_eq!(split_strict(&words("disk.img")), Err(ArgvError::Bare("disk.img".into())));
        assert_eq!(split_strict(&words("-S -m")), Err(ArgvError::ValueMissing("m".into())));
    }

    // A wrong arity would let a value slip in as an option: QEMU's own help is the judge.
    #[test]
    fn arities_agree_with_qemu() {
        let output = std::process::Command::new("qemu-system-x86_64").arg("-help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        for (name, arity, _) in KNOWN {
            if ["M", "hda", "hdb", "hdc", "hdd", "no-acpi", "no-hpet"].contains(name) {
                continue; // in the help under another heading, or gone from newer versions
            }
            let plain = format!("-{name} ");
            let double = format!("-{name}\t");
            let line = help
                .lines()
                .find(|line| {
                    line.starts_with(&plain) || line.starts_with(&double) || *line == format!("-{name}")
                })
                .unwrap_or_else(|| panic!("{name} is not in the help"));
            let after = &line[name.len() + 1..];
            let takes_value = after.starts_with(' ') && !after.starts_with("  ");
            assert_eq!(takes_value, *arity == Arity::Value, "{line}");
        }
    }
}

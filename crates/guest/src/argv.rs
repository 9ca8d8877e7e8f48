//! QEMU's command line as a list of options, and the table of the options that Linerate knows.

/// Whether an option takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    Flag,
    /// The next argument is its value, whatever it looks like.
    Value,
}

/// What is done with an option when an incoming QEMU is built from another host's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Taken over; its value names no file.
    Keep,
    /// Taken over; its value is text for the guest and may hold anything.
    Text,
    /// Left out: it concerns the source's process only, or is set by Linerate itself.
    Drop,
    /// Taken over after its own check and rewriting, see `incoming_qemu`.
    Special,
    /// Never taken over; the words say why and what to do.
    Refuse(&'static str),
}

use Arity::{Flag, Value};
use Rule::{Drop, Keep, Refuse, Special, Text};

/// Every option that may be in a description. An option that is not here is refused by name. So no new or forgotten
/// option can run programs, read configuration, or open files that the incoming QEMU's rules do not know.
pub const KNOWN: &[(&str, Arity, Rule)] = &[
    ("name", Value, Special),
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
    ("fda", Value, Special),
    ("fdb", Value, Special),
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
    ("audio", Value, Special),
    ("spice", Value, Special),
    ("run-with", Value, Special),
    ("display", Value, Special),
    ("nographic", Flag, Special),
    ("vnc", Value, Special),
    ("qmp", Value, Drop),
    ("qmp-pretty", Value, Drop),
    ("pidfile", Value, Drop),
    ("daemonize", Flag, Drop),
    ("sandbox", Value, Drop),
    ("incoming", Value, Drop),
    ("S", Flag, Drop),
    ("L", Value, Drop),
    ("mem-prealloc", Flag, Drop),
    ("D", Value, Drop),
    ("d", Value, Drop),
    ("loadvm", Value, Drop),
    ("echr", Value, Drop),
    ("async-teardown", Flag, Drop),
    ("full-screen", Flag, Drop),
    ("perfmap", Flag, Drop),
    ("jitdump", Flag, Drop),
    ("enable-sync-profile", Flag, Drop),
    // Proxmox: the number of the guest. A QEMU of its own knows the option, others do not.
    ("id", Value, Drop),
    // Settings of iSCSI disks, which are refused; Proxmox gives them to every guest.
    ("iscsi", Value, Drop),
    // Displays of older versions.
    ("sdl", Flag, Drop),
    ("curses", Flag, Drop),
    ("no-frame", Flag, Drop),
    ("alt-grab", Flag, Drop),
    ("ctrl-grab", Flag, Drop),
    ("no-quit", Flag, Drop),
    ("compat", Value, Keep),
    (
        "readconfig",
        Value,
        Refuse(
            "the file could not be read at the source, or has something else than sections with options: put it back, or write what it says on the command line",
        ),
    ),
    ("writeconfig", Value, Refuse("it writes a file of the host: start the guest without it")),
    (
        "snapshot",
        Flag,
        Refuse(
            "what the guest has written is in temporary files that end with its QEMU: start the guest without it, on a qcow2 image with a backing file",
        ),
    ),
    ("virtfs", Value, Refuse(SHARED_FOLDER)),
    ("fsdev", Value, Refuse(SHARED_FOLDER)),
    (
        "tpmdev",
        Value,
        Refuse("the TPM's state is kept by another process (swtpm): start the guest without its TPM"),
    ),
    ("set", Value, Refuse("it may change any option: write the property where its device is named")),
    ("add-fd", Value, Refuse("it is an open file of the source's process: name the file instead")),
    ("plugin", Value, Refuse("it loads a program into QEMU: start the guest without it")),
    ("gdb", Value, Refuse(DEBUGGER)),
    ("s", Flag, Refuse(DEBUGGER)),
    ("chroot", Value, Refuse(OWN_USER)),
    ("runas", Value, Refuse(OWN_USER)),
    ("trace", Value, Refuse("it may write a file of the host: switch tracing on in the monitor instead")),
    ("dfilter", Value, Drop),
    ("dump-vmstate", Value, Refuse("it writes a file of the host: start the guest without it")),
    ("preconfig", Flag, Refuse("QEMU is configured by its monitor before it runs: use options instead")),
    ("option-rom", Value, Refuse(GUEST_FILE)),
    ("acpitable", Value, Refuse(GUEST_FILE)),
    ("dtb", Value, Refuse(GUEST_FILE)),
    ("shim", Value, Refuse(GUEST_FILE)),
    ("sd", Value, Refuse("it is a medium of boards without PCI: use -drive")),
    ("mtdblock", Value, Refuse("it is a medium of boards without PCI: use -drive")),
    ("soundhw", Value, Refuse("QEMU has it no more: use -audiodev and -device")),
    ("watchdog", Value, Refuse("QEMU has it no more: use -device and -watchdog-action")),
];

const SHARED_FOLDER: &str = "it shares a folder of the source's host, and QEMU does not migrate a guest that has it mounted: start the guest without it";
const DEBUGGER: &str = "it opens a port for a debugger: start the guest without it";
const OWN_USER: &str = "the destination decides as whom its QEMU runs: start the guest without it";
const GUEST_FILE: &str = "it reads a file of the host into the guest's memory: start the guest without it";

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
    #[error(
        "the QEMU option -{0} is not among those that Linerate takes to another host: start the guest without it"
    )]
    Unknown(String),
    /// The value of an option is missing.
    #[error("the QEMU option -{0} has no value")]
    ValueMissing(String),
    /// An argument that is neither an option nor a disk image.
    #[error("the argument {0:?} is neither an option nor the name of a disk image")]
    Bare(String),
}

/// The entry of an option.
pub fn known(name: &str) -> Option<(Arity, Rule)> {
    KNOWN.iter().find(|(known, _, _)| *known == name).map(|&(_, arity, rule)| (arity, rule))
}

/// Splits arguments (without the program's name) strictly: what is not in the table is an error.
pub fn split_strict(arguments: &[String]) -> Result<Vec<Argument>, ArgvError> {
    let (options, errors) = split(arguments);
    errors.into_iter().next().map_or(Ok(options), Err)
}

/// The same with every error. The value of an option that is not in the table is guessed.
pub fn split(arguments: &[String]) -> (Vec<Argument>, Vec<ArgvError>) {
    let mut rest = arguments.iter().peekable();
    let (mut options, mut errors) = (Vec::new(), Vec::new());
    while let Some(text) = rest.next() {
        let Some(name) = option_name(text) else {
            match disk(text) {
                Some(option) => options.push(option),
                None => errors.push(ArgvError::Bare(text.clone())),
            }
            continue;
        };
        let value = match known(name) {
            Some((Flag, _)) => None,
            Some((Value, _)) => {
                let value = rest.next().cloned();
                if value.is_none() {
                    errors.push(ArgvError::ValueMissing(name.into()));
                    continue;
                }
                value
            }
            None => {
                errors.push(ArgvError::Unknown(name.chars().take(80).collect()));
                rest.next_if(|next| !next.starts_with('-'));
                continue;
            }
        };
        options.push(Argument { name: name.into(), value });
    }
    (options, errors)
}

/// Splits the arguments of a QEMU that runs here: options that are not in the table take what follows as their value
/// unless that looks like an option. Good for looking, not for building a command line.
pub fn split_loose(arguments: &[String]) -> Vec<Argument> {
    let mut rest = arguments.iter().peekable();
    let mut options = Vec::new();
    while let Some(text) = rest.next() {
        let Some(name) = option_name(text) else {
            options.extend(disk(text));
            continue;
        };
        let value = match known(name) {
            Some((Flag, _)) => None,
            Some((Value, _)) => rest.next().cloned(),
            None => rest.next_if(|next| !next.starts_with('-')).cloned(),
        };
        options.push(Argument { name: name.into(), value });
    }
    options
}

/// Arguments as they stand on a command line.
pub fn join(options: Vec<Argument>) -> Vec<String> {
    options
        .into_iter()
        .flat_map(|option| [Some(format!("-{}", option.name)), option.value])
        .flatten()
        .collect()
}

/// An argument without a dash is the first disk to QEMU, as if it were the value of `-hda`.
fn disk(text: &str) -> Option<Argument> {
    let named = !text.is_empty() && !text.starts_with('-');
    named.then(|| Argument { name: "hda".into(), value: Some(text.to_owned()) })
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
    fn an_argument_without_a_dash_is_the_first_disk() {
        let disk = Argument { name: "hda".into(), value: Some("disk.img".into()) };
        for line in ["-snapshot disk.img", "disk.img -S"] {
            assert!(split_loose(&words(line)).contains(&disk), "{line}");
            assert!(split_strict(&words(line)).unwrap().contains(&disk), "{line}");
        }
    }

    #[test]
    fn unknown_bare_and_truncated_options_are_errors() {
        assert_eq!(split_strict(&words("-new x")), Err(ArgvError::Unknown("new".into())));
        assert_eq!(split_strict(&words("-")), Err(ArgvError::Bare("-".into())));
        let (options, errors) = split(&words("-new x -m 64 -newer -S --"));
        assert_eq!(options.len(), 2);
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert_eq!(split_strict(&words("-S -m")), Err(ArgvError::ValueMissing("m".into())));
    }

    /// In the help under another heading, of another version, or of Proxmox.
    const OTHERS: &[&str] = &[
        "M",
        "hda",
        "hdb",
        "hdc",
        "hdd",
        "fda",
        "fdb",
        "dtb",
        "no-acpi",
        "no-hpet",
        "audio",
        "run-with",
        "async-teardown",
        "perfmap",
        "jitdump",
        "id",
        "sdl",
        "curses",
        "no-frame",
        "alt-grab",
        "ctrl-grab",
        "no-quit",
        "writeconfig",
        "soundhw",
        "watchdog",
        "shim",
        "preconfig",
    ];

    // A wrong arity would let a value slip in as an option: QEMU's own help is the judge.
    #[test]
    fn arities_agree_with_qemu() {
        let output = std::process::Command::new("qemu-system-x86_64").arg("-help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        for (name, arity, _) in KNOWN {
            if OTHERS.contains(name) {
                continue;
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

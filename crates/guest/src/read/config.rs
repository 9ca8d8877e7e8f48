//! `-readconfig`: a file of options, which QEMU has read when it was started. What it says is put in its place, and
//! judged like everything else on the command line.

use crate::argv::{Argument, join, split_loose};
use crate::options::{Options, escape};

/// Longest file read, in bytes: those of Proxmox have two thousand.
pub(super) const BYTES_MAX: u64 = 256 << 10;

/// Sections whose options have another name on the command line.
const NAMES: &[(&str, &str)] = &[("smp-opts", "smp"), ("memory", "m"), ("boot-opts", "boot")];

/// The command line with the options of the files. A `-readconfig` whose file cannot be read, or is not understood,
/// stays.
pub fn expand(arguments: &[String], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    if !arguments.iter().any(|argument| argument.trim_start_matches('-') == "readconfig") {
        return arguments.to_vec();
    }
    let file = |option: &Argument| parse(&read(option.value.as_deref()?)?);
    let expand = |option: Argument| match option.name.as_str() {
        "readconfig" => file(&option).unwrap_or_else(|| vec![option]),
        _ => vec![option],
    };
    join(split_loose(arguments).into_iter().flat_map(expand).collect())
}

/// `[group "id"]` and below it `key = "value"`, as QEMU reads them.
fn parse(text: &str) -> Option<Vec<Argument>> {
    let mut sections: Vec<(String, Options)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[') {
            Some(head) => sections.push(section(head.strip_suffix(']')?)?),
            None => {
                let (key, value) = line.split_once('=')?;
                let value = value.trim().strip_prefix('"')?.strip_suffix('"')?;
                let (_, options) = sections.last_mut()?;
                // As on a command line, where a key comes before its value.
                let pair = Options::parse(&format!("{}={}", key.trim(), escape(value)), None).ok()?;
                pair.pairs().for_each(|(key, value)| options.push(key, value));
            }
        }
    }
    let argument = |(name, options): (String, Options)| Argument { name, value: Some(options.to_string()) };
    Some(sections.into_iter().map(argument).collect())
}

fn section(head: &str) -> Option<(String, Options)> {
    let (group, id) = match head.split_once(' ') {
        Some((group, id)) => (group, Some(id.trim().strip_prefix('"')?.strip_suffix('"')?)),
        None => (head, None),
    };
    let name = NAMES.iter().find(|(section, _)| *section == group).map_or(group, |(_, option)| option);
    let id: Vec<(&str, &str)> = id.map(|id| ("id", id)).into_iter().collect();
    Some((name.to_owned(), Options::from_pairs(&id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_of_a_file_replace_the_file() {
        let file = "# made by hand\n[device \"usb\"]\n  driver = \"ich9-usb-ehci1\"\n  addr = \"1d.7\"\n\n[memory]\n size = \"64M\"\n[smp-opts]\n\tcpus = \"2\"\n[chardev \"a\"]\n path = \"/x,y\"\n";
        let read = |path: &str| (path == "/etc/a.cfg").then(|| file.to_owned());
        let expanded = expand(&words("-nodefaults --readconfig /etc/a.cfg -S"), read);
        let wanted = "-nodefaults -device id=usb,driver=ich9-usb-ehci1,addr=1d.7 -m size=64M -smp cpus=2 -chardev id=a,path=/x,,y -S";
        assert_eq!(expanded, words(wanted));
    }

    #[test]
    fn an_unreadable_file_of_options_is_refused_later() {
        let line = words("-readconfig /etc/a.cfg -S");
        assert_eq!(expand(&line, |_| None), line);
        for text in ["[device", "key = \"x\"", "[a]\nkey", "[a]\nkey = x", "[a]\nb c = \"d\""] {
            assert_eq!(expand(&line, |_| Some(text.to_owned())), line, "{text}");
        }
    }
}

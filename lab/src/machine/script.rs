//! The two small texts that control a machine: its folders and its command.

use super::command_line::Shared;
use super::{Side, System};

/// A line of `shares`: tag, mode and path, as `lab/rdma/init` reads them.
pub(super) fn share(shared: &Shared) -> String {
    let mode = if shared.read_only { "ro" } else { "rw" };
    format!("{} {mode} {}\n", shared.tag, shared.path.display())
}

/// The line that makes the links, whose failure is the machine's.
pub(super) fn links(system: System, links: u32, mtu: u32, side: Option<Side>) -> String {
    match (system, links, side) {
        (_, 0, _) | (System::Debian, _, None) => String::new(),
        (System::Rdma, _, None) => format!("rdma-links {links} {mtu} || exit 125\n"),
        (System::Rdma, _, Some(side)) => format!("rdma-ends {} {links} {mtu} || exit 125\n", side.name()),
        (System::Debian, _, Some(side)) => format!("link-ends {} {links} {mtu} || exit 125\n", side.name()),
    }
}

/// The lines that become the command.
pub(super) fn command(environment: &[(String, String)], words: &[String]) -> String {
    let mut text = String::new();
    for (name, value) in environment {
        text += &format!("export {name}={}\n", quoted(value));
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    text + "exec " + &words.join(" ") + "\n"
}

/// A word that the shell reads as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_gets_every_argument_unchanged() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME `x` \"\\", "", "line\nbreak"];
        let environment = [("GREETING".to_owned(), "it's $1".to_owned())];
        let mut script = command(&environment, &words.map(str::to_owned));
        script.insert_str(0, "trap 'printf %s \"$GREETING\"' EXIT\n");
        let script = script.replace("exec ", "");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output, "a b|it's|$HOME `x` \"\\||line\nbreak|it's $1");
    }

    #[test]
    fn links_are_made_in_one_machine_or_between_two() {
        assert_eq!(links(System::Rdma, 2, 1500, None), "rdma-links 2 1500 || exit 125\n");
        assert_eq!(links(System::Rdma, 2, 9000, Some(Side::B)), "rdma-ends b 2 9000 || exit 125\n");
        assert_eq!(links(System::Debian, 2, 1500, Some(Side::A)), "link-ends a 2 1500 || exit 125\n");
        assert_eq!(links(System::Rdma, 0, 9000, None), "");
    }
}

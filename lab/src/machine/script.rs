//! The two small texts that tell a machine what to do: its folders and its command.

use super::Shared;

/// A line of `shares`: tag, mode and path, as `lab/rdma/init` reads them.
pub(super) fn share(shared: &Shared) -> String {
    let mode = if shared.read_only { "ro" } else { "rw" };
    format!("{} {mode} {}\n", shared.tag, shared.path.display())
}

/// The shell script that makes the links and becomes the command.
pub(super) fn command(links: u32, mtu: u32, environment: &[(String, String)], words: &[String]) -> String {
    let mut text = String::new();
    if links > 0 {
        text += &format!("rdma-links {links} {mtu} || exit 125\n");
    }
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
    fn the_shell_gets_every_word_as_it_was() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME `x` \"\\", "", "line\nbreak"];
        let environment = [("GREETING".to_owned(), "it's $1".to_owned())];
        let mut script = command(0, 9000, &environment, &words.map(str::to_owned));
        script.insert_str(0, "trap 'printf %s \"$GREETING\"' EXIT\n");
        let script = script.replace("exec ", "");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, "a b|it's|$HOME `x` \"\\||line\nbreak|it's $1");
    }

    #[test]
    fn links_come_before_the_command() {
        let script = command(2, 1500, &[], &["true".to_owned()]);
        assert_eq!(script, "rdma-links 2 1500 || exit 125\nexec 'true'\n");
    }
}

//! Running set-up commands.

use std::process::{Command, Output, Stdio};

use crate::LabError;

/// Runs a command to its end and returns what it printed; its failure is an error that carries what it said.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, LabError> {
    let mut command = Command::new(program);
    command.args(arguments);
    output(command)
}

/// The same for a command that is put together already.
pub(crate) fn output(mut command: Command) -> Result<String, LabError> {
    let words = || std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words().map(|word| word.to_string_lossy().into_owned()).collect();
    let Output { status, stdout, stderr } = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| LabError::Spawn { program: words.first().cloned().unwrap_or_default(), source })?;
    if !status.success() {
        let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
        return Err(LabError::Command { command: words.join(" "), status, stderr });
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// `ip -n NAMESPACE ARGUMENTS`.
pub(crate) fn ip(namespace: &str, arguments: &[&str]) -> Result<String, LabError> {
    run("ip", &[&["-n", namespace], arguments].concat())
}

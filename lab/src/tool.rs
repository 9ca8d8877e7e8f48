//! Running set-up commands.

use std::process::{Command, Output, Stdio};

use crate::LabError;

fn line(program: &str, arguments: &[&str]) -> String {
    std::iter::once(program).chain(arguments.iter().copied()).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end and returns what it printed; its failure is an error that carries what it said.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, LabError> {
    let Output { status, stdout, stderr } = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| LabError::Spawn { program: program.to_owned(), source })?;
    if !status.success() {
        let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
        return Err(LabError::Command { command: line(program, arguments), status, stderr });
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// `ip -n NAMESPACE ARGUMENTS`.
pub(crate) fn ip(namespace: &str, arguments: &[&str]) -> Result<String, LabError> {
    run("ip", &[&["-n", namespace], arguments].concat())
}

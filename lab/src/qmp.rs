//! The little of QEMU's control protocol that tests and benchmarks of QEMU itself need.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::io_error;
use crate::{Host, LabError, wait};

const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const LONGEST_LINE: u64 = 4 << 20;

/// A control connection; events are skipped.
#[derive(Debug)]
pub struct Qmp {
    path: PathBuf,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and negotiates. QEMU serves one connection at a time on a socket.
    pub fn connect(path: &Path) -> Result<Qmp, LabError> {
        let stream = UnixStream::connect(path).map_err(io_error("connect to", path))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(io_error("set up", path))?;
        let mut qmp = Qmp { path: path.to_owned(), lines: BufReader::new(stream) };
        qmp.line()?;
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Connects to a guest of a host's agent, which serves no other client at the time.
    pub fn of_guest(host: &Host, guest: &str) -> Result<Qmp, LabError> {
        let path = host.run_directory().join("guests").join(guest).join("record.json");
        let text = std::fs::read(&path).map_err(io_error("read", &path))?;
        let what = || path.display().to_string();
        let record: Value =
            serde_json::from_slice(&text).map_err(|source| LabError::Json { what: what(), source })?;
        Qmp::connect(Path::new(record["qmp"].as_str().unwrap_or_default()))
    }

    /// Runs a command and gives what it returned. `Value::Null` for no arguments.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, LabError> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let text = format!("{request}\n");
        self.lines.get_mut().write_all(text.as_bytes()).map_err(io_error("write to", &self.path))?;
        loop {
            let mut answer = self.line()?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(LabError::Qmp { command: command.to_owned(), answer: error.to_string() });
            }
        }
    }

    /// Polls `query-migrate` until it ends, and gives the last answer; a failed migration is an answer too.
    pub fn wait_migrated(&mut self, limit: Duration) -> Result<Value, LabError> {
        wait::until("the end of QEMU's migration", limit, String::new, || {
            let answer = self.execute("query-migrate", Value::Null)?;
            let ended = matches!(answer["status"].as_str(), Some("completed" | "failed" | "cancelled"));
            Ok(ended.then_some(answer))
        })
    }

    fn line(&mut self) -> Result<Value, LabError> {
        let mut line = String::new();
        let count = (&mut self.lines).take(LONGEST_LINE).read_line(&mut line);
        if count.map_err(io_error("read from", &self.path))? == 0 {
            return Err(io_error("read from", &self.path)(std::io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).map_err(|source| LabError::Json { what: "QEMU's answer".into(), source })
    }
}

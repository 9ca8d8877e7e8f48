//! QMP, the control protocol of QEMU: JSON lines over a UNIX socket, blocking, every wait with a deadline.
//!
//! QEMU serves one QMP client at a time: a second connection is taken by the kernel but never greeted, so "busy" shows
//! as a greeting that does not come. Events may arrive between a command and its answer; they are queued. Commands
//! carry an id, so that the late answer of a command that timed out is not taken for the answer of the next.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Map, Value, json};

use crate::socket_file::SocketFile;

/// Longest line taken from QEMU, in bytes. `query-*` answers of large guests reach some hundred KiB.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Events kept until a caller asks for them; when one more comes, the oldest goes that is not among [`KEPT`].
pub const EVENTS_MAX: usize = 1024;
/// Bytes of the lines of the events kept.
pub const EVENTS_BYTES_MAX: usize = 1 << 20;
/// Events that say whether the guest runs or has left: they go only if nothing else is left to go.
const KEPT: &[&str] = &["STOP", "RESUME", "MIGRATION"];
/// A QEMU has no more events to send than are read in this time.
const CLEAR_WAIT: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 << 10;

/// What can go wrong on a QMP connection.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket cannot be connected to.
    #[error("cannot connect to the QMP socket {path}: check that the guest runs and that the path is right")]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another client is connected: QEMU serves one client at a time.
    #[error(
        "the QMP socket {path} does not greet: another client is connected to it (QEMU serves one at a time), close that one or give the guest a second -qmp socket"
    )]
    Busy { path: PathBuf },
    /// Another process listens there.
    #[error(
        "the QMP socket {path} is that of process {found}, not of process {pid}: has the guest ended, or was the socket replaced?"
    )]
    OtherProcess { path: PathBuf, found: i32, pid: i32 },
    /// QEMU answered with an error.
    #[error("QEMU refused {command}: {description} ({class})")]
    Refused { command: String, class: String, description: String },
    /// QEMU closed the connection: usually its process ended.
    #[error("QEMU closed the QMP connection while {doing}: its process has probably ended")]
    Closed {
        /// What was in progress.
        doing: String,
    },
    #[error("QEMU did not answer in time while {doing}")]
    TimedOut {
        /// What was in progress.
        doing: String,
    },
    /// A line was not JSON, or not a QMP message.
    #[error("what came from the QMP socket is not QMP: {what}")]
    Malformed {
        /// What was wrong with it.
        what: &'static str,
    },
    /// A line exceeded [`LINE_BYTES_MAX`].
    #[error("a QMP line is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// An earlier failure left the stream in the middle of a message.
    #[error("the QMP connection is unusable after an earlier failure: connect again")]
    Broken,
    #[error("the QMP socket failed while {doing}")]
    Socket {
        /// What was in progress.
        doing: String,
        #[source]
        source: io::Error,
    },
}

/// Version of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QemuVersion {
    /// The 10 in version 10.0.2.
    pub major: u32,
    /// The 0 in version 10.0.2.
    pub minor: u32,
    /// The 2 in version 10.0.2.
    pub micro: u32,
}

impl std::fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// An event of QEMU.
#[derive(Clone, Debug)]
pub struct Event {
    /// `STOP`, `MIGRATION`, …
    pub name: String,
    /// Its data, an empty object if there was none.
    pub data: Value,
    /// QEMU's wall clock when it arose, since the epoch.
    pub emitted: Duration,
    /// When it was read here.
    pub read_at: Instant,
}

impl Event {
    /// Whether this is `MIGRATION` with that status.
    pub fn is_migration(&self, status: &str) -> bool {
        self.migration_status() == Some(status)
    }

    /// The status of a `MIGRATION` event.
    pub fn migration_status(&self) -> Option<&str> {
        if self.name == "MIGRATION" { self.data.get("status")?.as_str() } else { None }
    }
}

/// With an event its line's length in bytes.
enum Line {
    Event(Event, usize),
    Answer { id: Option<u64>, result: Result<Value, (String, String)> },
}

/// A QMP connection, past its greeting and `qmp_capabilities`.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    buffer: Vec<u8>,
    scanned: usize,
    events: VecDeque<(Event, usize)>,
    events_bytes: usize,
    events_dropped: u64,
    last_id: u64,
    version: QemuVersion,
    broken: bool,
}

impl Qmp {
    /// Ends the connection, so that QEMU, which serves one client at a time, takes the next.
    pub fn hang_up(&mut self) {
        self.broken = true;
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Connects, waits for the greeting and leaves the negotiation mode.
    pub fn connect(path: &Path, deadline: Instant) -> Result<Qmp, QmpError> {
        Qmp::greeted(connect_stream(path, deadline)?, path, deadline)
    }

    /// The same with the socket of this process. Nothing is read from another one, or written to it, wherever a name
    /// that a hostile QEMU made may lead.
    pub fn connect_to(path: &Path, pid: i32, deadline: Instant) -> Result<Qmp, QmpError> {
        let stream = connect_stream(path, deadline)?;
        let found = peer_pid(&stream)?;
        if found != pid {
            return Err(QmpError::OtherProcess { path: path.to_owned(), found, pid });
        }
        Qmp::greeted(stream, path, deadline)
    }

    fn greeted(stream: UnixStream, path: &Path, deadline: Instant) -> Result<Qmp, QmpError> {
        let version = QemuVersion { major: 0, minor: 0, micro: 0 };
        let mut qmp = Qmp {
            stream,
            buffer: Vec::new(),
            scanned: 0,
            events: VecDeque::new(),
            events_bytes: 0,
            events_dropped: 0,
            last_id: 0,
            version,
            broken: false,
        };
        let greeting = qmp.read_line(deadline, "waiting for the greeting").map_err(|error| match error {
            QmpError::TimedOut { .. } => QmpError::Busy { path: path.to_owned() },
            other => other,
        })?;
        qmp.version = parse_greeting(&greeting)?;
        qmp.execute("qmp_capabilities", json!({}), deadline)?;
        Ok(qmp)
    }

    /// QEMU's version, from the greeting.
    pub fn version(&self) -> QemuVersion {
        self.version
    }

    /// Events that were thrown away because no caller asked for them.
    pub fn events_dropped(&self) -> u64 {
        self.events_dropped
    }

    /// Pid of the process that listens on the socket, as the kernel knows it.
    pub fn peer_pid(&self) -> Result<i32, QmpError> {
        peer_pid(&self.stream)
    }

    /// Sends a command and waits for its answer. `arguments` is an object.
    pub fn execute(&mut self, command: &str, arguments: Value, deadline: Instant) -> Result<Value, QmpError> {
        if self.broken {
            return Err(QmpError::Broken);
        }
        let (id, line) = self.line(command, arguments);
        self.write(&line, deadline, command)?;
        self.answer(id, command, deadline)
    }

    /// Sends several commands in one go, and gives their answers in this order: each wait for an answer costs more than
    /// QEMU's work does. The first that is refused is the error; the others are carried out all the same.
    pub fn execute_all<const N: usize>(
        &mut self,
        commands: [(&str, Value); N],
        deadline: Instant,
    ) -> Result<[Value; N], QmpError> {
        if self.broken {
            return Err(QmpError::Broken);
        }
        let (mut lines, mut first) = (Vec::new(), "");
        let asked = commands.map(|(command, arguments)| {
            let (id, line) = self.line(command, arguments);
            lines.extend(line);
            if first.is_empty() {
                first = command;
            }
            (id, command)
        });
        self.write(&lines, deadline, first)?;
        let answers = asked.map(|(id, command)| self.answer(id, command, deadline));
        let mut values = [const { Value::Null }; N];
        for (value, answer) in values.iter_mut().zip(answers) {
            *value = answer?;
        }
        Ok(values)
    }

    fn line(&mut self, command: &str, arguments: Value) -> (u64, Vec<u8>) {
        self.last_id += 1;
        let mut message = Map::new();
        message.insert("execute".into(), command.into());
        if arguments.as_object().is_some_and(|object| !object.is_empty()) {
            message.insert("arguments".into(), arguments);
        }
        message.insert("id".into(), self.last_id.into());
        let mut line = Value::Object(message).to_string().into_bytes();
        line.push(b'\n');
        (self.last_id, line)
    }

    fn answer(&mut self, id: u64, command: &str, deadline: Instant) -> Result<Value, QmpError> {
        loop {
            match self.next(deadline, command)? {
                Line::Event(event, bytes) => self.queue(event, bytes),
                Line::Answer { id: Some(other), .. } if other != id => {}
                Line::Answer { result: Ok(value), .. } => return Ok(value),
                Line::Answer { result: Err((class, description)), .. } => {
                    return Err(QmpError::Refused { command: command.into(), class, description });
                }
            }
        }
    }

    /// The first event, queued or still to come, that the predicate takes. The others stay queued.
    pub fn wait_event(
        &mut self,
        mut wanted: impl FnMut(&Event) -> bool,
        deadline: Instant,
    ) -> Result<Event, QmpError> {
        let queued = self.events.iter().position(|(event, _)| wanted(event));
        if let Some(found) = queued.and_then(|index| self.take(index)) {
            return Ok(found);
        }
        loop {
            match self.next(deadline, "waiting for an event")? {
                Line::Event(event, _) if wanted(&event) => return Ok(event),
                Line::Event(event, bytes) => self.queue(event, bytes),
                Line::Answer { .. } => {}
            }
        }
    }

    /// The next queued event, or one that has already arrived on the socket.
    pub fn try_event(&mut self) -> Result<Option<Event>, QmpError> {
        if let Some(event) = self.take(0) {
            return Ok(Some(event));
        }
        // A deadline of a millisecond: what has arrived is read, nothing is waited for.
        match self.wait_event(|_| true, Instant::now() + Duration::from_millis(1)) {
            Ok(event) => Ok(Some(event)),
            Err(QmpError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets the events that came so far, on the socket too. A QEMU that goes on sending is an error.
    pub fn clear_events(&mut self) -> Result<(), QmpError> {
        let end = Instant::now() + CLEAR_WAIT;
        while self.try_event()?.is_some() {
            remaining(end, "clearing its events")?;
        }
        Ok(())
    }

    fn take(&mut self, index: usize) -> Option<Event> {
        let (event, bytes) = self.events.remove(index)?;
        self.events_bytes -= bytes;
        Some(event)
    }

    fn queue(&mut self, event: Event, bytes: usize) {
        self.events.push_back((event, bytes));
        self.events_bytes += bytes;
        while self.events.len() > EVENTS_MAX || self.events_bytes > EVENTS_BYTES_MAX {
            let other = self.events.iter().position(|(event, _)| !KEPT.contains(&event.name.as_str()));
            self.take(other.unwrap_or(0));
            self.events_dropped += 1;
        }
    }

    fn next(&mut self, deadline: Instant, doing: &str) -> Result<Line, QmpError> {
        let line = self.read_line(deadline, doing)?;
        let parsed = parse_line(&line);
        self.broken |= parsed.is_err();
        parsed
    }

    fn write(&mut self, line: &[u8], deadline: Instant, doing: &str) -> Result<(), QmpError> {
        let mut rest = line;
        while !rest.is_empty() {
            let result = remaining(deadline, doing)
                .and_then(|left| {
                    self.stream.set_write_timeout(Some(left)).map_err(|e| socket_error(doing, e))
                })
                .and_then(|()| self.stream.write(rest).map_err(|e| socket_error(doing, e)));
            match result {
                Ok(0) => return Err(self.fail(QmpError::Closed { doing: doing.into() })),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Ok(())
    }

    // A time-out here breaks nothing: what was read stays in the buffer.
    fn read_line(&mut self, deadline: Instant, doing: &str) -> Result<Vec<u8>, QmpError> {
        if self.broken {
            return Err(QmpError::Broken);
        }
        let mut chunk = vec![0; READ_BYTES];
        loop {
            let fresh = self.buffer.get(self.scanned..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(self.scanned + at + 1);
                self.scanned = 0;
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(self.fail(QmpError::LineTooLong));
            }
            let left = remaining(deadline, doing)?;
            self.stream.set_read_timeout(Some(left)).map_err(|e| socket_error(doing, e))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.fail(QmpError::Closed { doing: doing.into() })),
                Ok(count) => self.buffer.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) => match socket_error(doing, error) {
                    QmpError::TimedOut { .. } => {} // the deadline decides
                    other => return Err(self.fail(other)),
                },
            }
        }
    }

    fn fail(&mut self, error: QmpError) -> QmpError {
        self.broken = true;
        error
    }
}

fn peer_pid(stream: &UnixStream) -> Result<i32, QmpError> {
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd())
        .map_err(|e| socket_error("asking who listens", e.into()))?;
    Ok(credentials.pid.as_raw_nonzero().get())
}

fn connect_stream(path: &Path, deadline: Instant) -> Result<UnixStream, QmpError> {
    let failed = |source: io::Error| QmpError::Connect { path: path.to_owned(), source };
    let file = SocketFile::open(path).map_err(failed)?;
    let address = SocketAddrUnix::new(file.path()).map_err(|e| failed(e.into()))?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    loop {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| failed(e.into()))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false).map_err(failed)?;
                let server = rustix::net::sockopt::socket_peercred(&stream).map_err(|e| failed(e.into()))?;
                file.check_server(server.uid.as_raw()).map_err(failed)?;
                return Ok(stream);
            }
            // The backlog is full: clients wait already.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                if remaining(deadline, "connecting").is_err() {
                    return Err(QmpError::Busy { path: path.to_owned() });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

fn remaining(deadline: Instant, doing: &str) -> Result<Duration, QmpError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(QmpError::TimedOut { doing: doing.into() }) } else { Ok(left) }
}

fn socket_error(doing: &str, source: io::Error) -> QmpError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
            QmpError::TimedOut { doing: doing.into() }
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            QmpError::Closed { doing: doing.into() }
        }
        _ => QmpError::Socket { doing: doing.into(), source },
    }
}

fn parse_greeting(line: &[u8]) -> Result<QemuVersion, QmpError> {
    let malformed = QmpError::Malformed { what: "the greeting has no QEMU version" };
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        return Err(QmpError::Malformed { what: "the greeting is not JSON" });
    };
    let number = |name| {
        let found = value.pointer("/QMP/version/qemu")?.get(name)?.as_u64()?;
        u32::try_from(found).ok()
    };
    match (number("major"), number("minor"), number("micro")) {
        (Some(major), Some(minor), Some(micro)) => Ok(QemuVersion { major, minor, micro }),
        _ => Err(malformed),
    }
}

fn parse_line(line: &[u8]) -> Result<Line, QmpError> {
    let Ok(Value::Object(mut message)) = serde_json::from_slice::<Value>(line) else {
        return Err(QmpError::Malformed { what: "a line is not a JSON object" });
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(name) = message.get("event").and_then(Value::as_str) {
        let part = |key| message.get("timestamp").and_then(|t| t.get(key)?.as_u64()).unwrap_or(0);
        let emitted =
            Duration::from_secs(part("seconds")).saturating_add(Duration::from_micros(part("microseconds")));
        let name = name.to_owned();
        let data = message.remove("data").unwrap_or_else(|| json!({}));
        let event = Event { name, data, emitted, read_at: Instant::now() };
        return Ok(Line::Event(event, line.len()));
    }
    let id = message.get("id").and_then(Value::as_u64);
    if let Some(value) = message.remove("return") {
        return Ok(Line::Answer { id, result: Ok(value) });
    }
    if let Some(error) = message.get("error") {
        let result = Err((text(error.get("class")), text(error.get("desc"))));
        return Ok(Line::Answer { id, result });
    }
    Err(QmpError::Malformed { what: "a line is neither answer nor event" })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nothing_is_said_to_the_socket_of_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let service = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let greeting = r#"{"QMP": {"version": {"qemu": {"major": 9, "minor": 0, "micro": 0}}}}"#;
            let _ = writeln!(stream, "{greeting}");
            let mut received = Vec::new();
            let _ = stream.read_to_end(&mut received);
            received
        });
        let own = i32::try_from(std::process::id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let refused = Qmp::connect_to(&path, own + 1, deadline).unwrap_err();
        assert!(matches!(refused, QmpError::OtherProcess { found, .. } if found == own), "{refused}");
        assert!(service.join().unwrap().is_empty());
    }
}

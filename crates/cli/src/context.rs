//! What a command needs of its surroundings: the agent, and where and how to write.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use console::Term;
use linerate_api::{Client, DEFAULT_SOCKET};
use serde::Serialize;

use crate::failure::Failure;
use crate::render::paint::Paint;

/// Wide enough for every table, narrow enough for the eye.
const WIDTH_MAX: usize = 100;
/// What a file or a pipe gets.
const WIDTH_UNKNOWN: usize = 100;
/// More is no answer to a question.
const ANSWER_BYTES_MAX: u64 = 1024;

/// An output, and how text must look on it.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: usize,
    pub paint: Paint,
    /// Text can be redrawn in place.
    pub live: bool,
}

/// What every command is given.
#[derive(Debug)]
pub struct Context {
    pub client: Client,
    /// The socket was named, by the option or the variable.
    pub socket_is_named: bool,
    /// If the agent is that of another host: options of a command that asks it.
    pub connected: Option<String>,
    /// What the option says.
    pub socket_flag: Option<PathBuf>,
    pub json: bool,
    pub out: Screen,
    pub err: Screen,
}

impl Context {
    /// Looks at the environment and the terminal.
    pub fn from_environment(socket: Option<PathBuf>, json: bool) -> Context {
        let from_variable =
            || std::env::var_os("LINERATE_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        let named = socket.clone().or_else(from_variable);
        let socket_is_named = named.is_some();
        Context {
            client: Client::new(named.unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET))),
            socket_is_named,
            connected: None,
            socket_flag: socket,
            json,
            out: screen(&Term::stdout(), std::io::stdout().is_terminal()),
            err: screen(&Term::stderr(), std::io::stderr().is_terminal()),
        }
    }

    /// The agent of a configuration, unless another socket was named.
    pub fn client_of(&self, configured: &Path) -> Client {
        let socket = if self.socket_is_named { self.client.socket() } else { configured };
        Client::new(socket)
    }

    /// A command to type that asks the same agent.
    pub fn command(&self, words: &str) -> String {
        match &self.connected {
            Some(options) => format!("`linerate {options} {words}`"),
            None => format!("`linerate {words}`"),
        }
    }

    /// Text on standard output.
    pub fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
    }

    /// A document for programs, or the text for people.
    pub fn answer<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { self.print_json(value) } else { self.print(&text()) }
    }

    /// The same of something that was done, and stays so without its output.
    pub fn done<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
        self.answer(value, text).map_err(Failure::after_it_was_done)
    }

    /// The text, if people read it.
    pub fn people(&self, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { Ok(()) } else { self.print(&text()) }
    }

    /// The document, if a program reads it.
    pub fn programs<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        if self.json { self.print_json(value) } else { Ok(()) }
    }

    /// A question that is answered with a line; anything but yes is no.
    pub fn ask(&self, question: &str) -> Result<bool, Failure> {
        self.print(&format!("{question} [y/N] "))?;
        let mut line = String::new();
        let read = std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut line);
        let answer = read.map(|_| line.trim().to_ascii_lowercase()).unwrap_or_default();
        // A terminal shows the end of the line that was typed, a pipe does not.
        if !self.out.live {
            self.print("\n")?;
        }
        Ok(matches!(answer.as_str(), "y" | "yes"))
    }

    /// A document on standard output.
    fn print_json<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value).map_err(|error| Failure::output(&error.into()))?;
        self.print(&(text + "\n"))
    }

    /// A document in one line, written at once.
    pub fn print_json_line<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|error| Failure::output(&error.into()))?;
        self.print(&(text + "\n"))
    }

    /// A line on standard error. If that is closed, the line is dropped.
    pub fn print_line(&self, line: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

fn screen(term: &Term, is_terminal: bool) -> Screen {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let width = if is_terminal { usize::from(term.size().1).min(WIDTH_MAX) } else { WIDTH_UNKNOWN };
    let colours = is_terminal && !dumb && !set("NO_COLOR");
    let paint = if colours { Paint { colours } } else { Paint::PLAIN };
    Screen { width, paint, live: is_terminal && !dumb }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_for_another_hosts_agent_say_so() {
        let here = Context::from_environment(None, false);
        let there =
            Context { connected: Some("--connect root@b".into()), ..Context::from_environment(None, false) };
        assert_eq!(here.command("drain status"), "`linerate drain status`");
        assert_eq!(there.command("drain status"), "`linerate --connect root@b drain status`");
    }
}

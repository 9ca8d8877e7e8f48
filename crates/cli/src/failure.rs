//! A command that did not do what it was asked: what happened, where, what the guest does, what to do.

use console::measure_text_width;
use linerate_api::{ClientError, ErrorBody, MigrationOutcome};

use crate::context::Context;
use crate::documents::ErrorLine;
use crate::exit::{self, Exit};
use crate::render::format::clean;
use crate::render::paint::Paint;
use crate::render::table::wrap;

/// Everything there is to say about it.
#[derive(Debug)]
pub struct Failure {
    /// How the command ends.
    pub exit: Exit,
    message: String,
    place: Option<Box<str>>,
    /// The agent that was asked, if it is that of another host.
    agent: Option<Box<str>>,
    guest: Option<String>,
    hint: String,
    body: Option<Box<ErrorBody>>,
}

impl Failure {
    /// A failure of the command itself.
    pub fn new(exit: Exit, message: impl Into<String>, hint: impl Into<String>) -> Failure {
        let (message, hint) = (message.into(), hint.into());
        Failure { exit, message, place: None, agent: None, guest: None, hint, body: None }
    }

    /// What an agent said.
    pub fn of_body(exit: Exit, body: &ErrorBody) -> Failure {
        Failure {
            exit,
            message: body.message.clone(),
            place: place(body).map(String::into_boxed_str),
            agent: None,
            guest: body.guest_state.map(|state| state.text().to_owned()),
            hint: hint(body),
            body: Some(Box::new(body.clone())),
        }
    }

    /// A migration that ended like this.
    pub fn of_outcome(outcome: MigrationOutcome, error: Option<&ErrorBody>) -> Failure {
        let exit = exit::of_outcome(outcome, error);
        match error {
            Some(body) => Failure::of_body(exit, body),
            None => Failure::new(exit, outcome_words(outcome), ""),
        }
    }

    /// The same, and what came of it.
    #[must_use]
    pub fn and(mut self, words: &str) -> Failure {
        self.message = format!("{}; {words}", self.message);
        if let Some(body) = &mut self.body {
            body.message.clone_from(&self.message);
        }
        self
    }

    /// The same of an output that is missing, where what was asked for was done.
    #[must_use]
    pub fn after_it_was_done(self) -> Failure {
        self.and("the command did what it was asked, and only its output is missing")
    }

    /// What happened, in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Standard output or a file could not be written.
    pub fn output(error: &std::io::Error) -> Failure {
        Failure::new(Exit::Failed, format!("the output cannot be written: {error}"), "")
    }

    /// The end of what was watched, whatever became of the output: that is said on standard error. Only a good
    /// end becomes another one, `unsaid`.
    pub fn of_ended(
        ended: Result<Exit, Failure>,
        output: Result<(), Failure>,
        unsaid: Exit,
        context: &Context,
    ) -> Result<Exit, Failure> {
        match (ended, output) {
            (Ok(Exit::Ok), Err(failure)) => Err(Failure { exit: unsaid, ..failure }.after_it_was_done()),
            (ended, Err(failure)) => {
                context.print_line(&failure.message);
                ended
            }
            (ended, Ok(())) => ended,
        }
    }

    /// The same, but what was begun goes on.
    #[must_use]
    pub fn while_watching(self, hint: impl Into<String>) -> Failure {
        Failure { exit: Exit::NotWatched, hint: hint.into(), ..self }
    }

    /// The answer to a request that begins something did not come, or was not understood: it may have been taken.
    /// An agent that could not be connected to was not asked.
    pub fn of_request(error: ClientError, hint: impl Into<String>) -> Failure {
        let was_asked = matches!(
            error,
            ClientError::Silent { .. }
                | ClientError::Broken(_)
                | ClientError::Answer(_)
                | ClientError::AnswerTooLong { .. }
        );
        let failure = Failure::from(error);
        if was_asked { failure.while_watching(hint) } else { failure }
    }

    /// A request about something that has begun, and goes on without the command: only what the agent says of
    /// the guest is an end.
    pub fn of_lost(error: ClientError, hint: impl Into<String>) -> Failure {
        match &error {
            ClientError::Agent { body, .. } if body.guest_state.is_some() => error.into(),
            ClientError::Cut { .. } => error.into(),
            _ => Failure::from(error).while_watching(hint),
        }
    }

    /// The same, of the agent of another host, which was asked by ssh.
    #[must_use]
    pub fn of_agent_at(mut self, target: &str) -> Failure {
        let agent = format!("the agent of {target} (`--connect {target}`)");
        let place = self.place.as_ref().map_or(agent.clone(), |place| format!("{agent}: {place}"));
        (self.place, self.agent) = (Some(place.into()), Some(agent.into()));
        self
    }

    /// The message for people, in lines of this width.
    pub fn render(&self, width: usize, paint: Paint) -> String {
        let mut lines = entry(&paint.red("error:"), "error:", &self.message, width);
        for (label, text) in [("where:", self.place.as_deref()), ("guest:", self.guest.as_deref())] {
            lines.extend(text.map(|text| entry(&paint.bold(label), label, text, width)).unwrap_or_default());
        }
        if !self.hint.is_empty() {
            lines.extend(entry(&paint.bold("do:"), "do:", &self.hint, width));
        }
        lines.join("\n") + "\n"
    }

    /// For programs: one line, the last one; `kind` distinguishes it from the events of a migration. It names the
    /// agent of another host in the message.
    pub fn json(&self) -> String {
        let mut body = self.body.clone().unwrap_or_else(|| {
            Box::new(ErrorBody::new(self.exit.code(), &self.message).with_hint(&self.hint))
        });
        if let Some(agent) = &self.agent {
            body.message = format!("{agent}: {}", body.message);
        }
        let line = ErrorLine { kind: "error", error: &body, exit_code: self.exit as u8 };
        serde_json::to_string(&line).unwrap_or_default()
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let exit = exit::of_client(&error);
        match &error {
            ClientError::Agent { body, .. } => Failure::of_body(exit, body),
            _ => Failure::new(exit, error.to_string(), error.hint()),
        }
    }
}

/// A label with its text beside it, broken into lines that stand below each other.
fn entry(painted: &str, label: &str, text: &str, width: usize) -> Vec<String> {
    const INDENT: usize = 7;
    let space = " ".repeat(INDENT.saturating_sub(label.len()));
    let lines = broken(text, width.saturating_sub(INDENT).max(20));
    let first = |line: String| format!("{painted}{space}{line}");
    let next = |line: String| format!("{}{line}", " ".repeat(INDENT));
    lines.into_iter().enumerate().map(|(at, line)| if at == 0 { first(line) } else { next(line) }).collect()
}

/// Lines of a text that has several are kept: a file's line with a mark below what is wrong in it means nothing
/// otherwise.
fn broken(text: &str, width: usize) -> Vec<String> {
    let fits = |line: &str| text.trim_end().contains('\n') && measure_text_width(line) <= width;
    let line = |line: &str| {
        let line = clean(line.trim_end());
        if fits(&line) { vec![line] } else { wrap(&line, width) }
    };
    text.trim_end().split('\n').flat_map(line).collect()
}

fn place(body: &ErrorBody) -> Option<String> {
    let step = body.step.map(|step| format!("step {} ({step})", step.number()));
    let side = body.side.map(|side| format!("the {side}"));
    match (side, step) {
        (Some(side), Some(step)) => Some(format!("{side}, {step}")),
        (side, step) => side.or(step),
    }
}

fn hint(body: &ErrorBody) -> String {
    let retry = if body.retry_can_help { "the same command can succeed later" } else { "" };
    match (body.hint.is_empty(), retry.is_empty()) {
        (false, false) => format!("{}; {retry}", body.hint),
        (false, true) => body.hint.clone(),
        (true, _) => retry.to_owned(),
    }
}

fn outcome_words(outcome: MigrationOutcome) -> &'static str {
    match outcome {
        MigrationOutcome::Completed => "the guest was moved",
        MigrationOutcome::Cancelled => "the migration was cancelled; the guest runs at the source as before",
        MigrationOutcome::Checked => "the guest can move; it runs at the source as before",
        MigrationOutcome::Failed => "the migration failed; the guest runs at the source as before",
        MigrationOutcome::InDoubt => {
            "the guest is paused at the source, which asks the destination whether it took over"
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_api::{GuestState, Side, Step};

    use super::*;

    fn short_of_memory() -> ErrorBody {
        ErrorBody {
            step: Some(Step::Admit),
            side: Some(Side::Destination),
            retry_can_help: true,
            guest_state: Some(GuestState::RunsAtSource),
            ..ErrorBody::new(
                "memory_short",
                "the destination has too little free memory: 8.00 GiB needed, 3.20 GiB free",
            )
            .with_hint("free memory on beta, or choose another host")
        }
    }

    #[test]
    fn another_hosts_agent_is_named() {
        let said = |failure: Failure| failure.of_agent_at("root@b").render(200, Paint::PLAIN);
        let text = said(Failure::new(Exit::Failed, "no", "see `linerate resolve` on both hosts"));
        assert!(text.contains("\nwhere: the agent of root@b (`--connect root@b`)\n"), "{text}");
        let text = said(Failure::of_body(Exit::Refused, &short_of_memory()));
        assert!(text.contains("(`--connect root@b`): the destination, step"), "{text}");
        for failure in
            [Failure::new(Exit::Failed, "no", ""), Failure::of_body(Exit::Refused, &short_of_memory())]
        {
            let json: serde_json::Value =
                serde_json::from_str(&failure.of_agent_at("root@b").json()).unwrap();
            let message = json["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("the agent of root@b (`--connect root@b`): "), "{message}");
        }
    }

    #[test]
    fn an_error_says_what_where_the_guest_and_what_to_do() {
        let failure = Failure::of_body(exit::of_body(&short_of_memory()), &short_of_memory());
        assert_eq!(failure.exit, Exit::Refused);
        let expected = "\
error: the destination has too little free memory: 8.00 GiB
       needed, 3.20 GiB free
where: the destination, step 3 (admit)
guest: the guest runs at the source as before
do:    free memory on beta, or choose another host; the same
       command can succeed later
";
        assert_eq!(failure.render(60, Paint::PLAIN), expected);
    }

    #[test]
    fn a_line_of_a_file_is_shown_with_the_mark_below_it() {
        let text = "a.toml is wrong: TOML parse error at line 2, column 1\n  |\n2 | memry = \"4G\"\n  | ^^^^^\nunknown field `memry`, expected `name` or one of many others\n";
        let expected = "\
error: a.toml is wrong: TOML parse error at line 2, column 1
         |
       2 | memry = \"4G\"
         | ^^^^^
       unknown field `memry`, expected `name` or one of many
       others
";
        assert_eq!(Failure::new(Exit::Usage, text, "").render(62, Paint::PLAIN), expected);
    }

    #[test]
    fn what_has_begun_is_not_watched_any_more_when_its_agent_is_lost() {
        let path = std::path::PathBuf::from("/run/agent.sock");
        let limit = std::time::Duration::from_secs(30);
        let refused = |body| ClientError::Agent { status: 404, body: Box::new(body) };
        let absent = || ClientError::SocketAbsent { path: path.clone() };
        let silent = || ClientError::Silent { limit };
        let broken = || ClientError::AnswerTooLong { bytes_max: 1 };
        let restarted = || refused(ErrorBody::new("migration_unknown", "there is no migration"));
        for lost in [absent(), silent(), broken(), restarted()] {
            assert_eq!(Failure::of_lost(lost, "").exit, Exit::NotWatched);
        }
        let body = ErrorBody { guest_state: Some(GuestState::InDoubt), ..ErrorBody::new("too_late", "no") };
        assert_eq!(Failure::of_lost(refused(body), "").exit, Exit::InDoubt);

        let asked = |error| Failure::of_request(error, "see `linerate migration list`");
        assert_eq!(asked(absent()).exit, Exit::Unreachable, "nothing was sent");
        assert_eq!(asked(restarted()).exit, Exit::Refused, "it said no");
        for lost in [silent(), broken()] {
            let failure = asked(lost);
            assert_eq!(failure.exit, Exit::NotWatched);
            assert!(failure.render(200, Paint::PLAIN).contains("do:    see `linerate migration list`"));
        }
    }

    #[test]
    fn the_end_weighs_more_than_the_output() {
        let context = Context::from_environment(None, false);
        let closed = || Err(Failure::output(&std::io::ErrorKind::BrokenPipe.into()));
        let end = |ended| {
            Failure::of_ended(ended, closed(), Exit::MovedWithFault, &context).map_err(|failure| failure.exit)
        };
        assert_eq!(end(Ok(Exit::Ok)), Err(Exit::MovedWithFault));
        assert_eq!(end(Err(Failure::new(Exit::InDoubt, "", ""))), Err(Exit::InDoubt));
    }

    #[test]
    fn programs_get_the_code_and_the_exit_code() {
        let failure = Failure::of_body(Exit::Refused, &short_of_memory());
        let json: serde_json::Value = serde_json::from_str(&failure.json()).unwrap();
        assert_eq!(json["error"]["code"], "memory_short");
        assert_eq!(json["exit_code"], 4);
        let json: serde_json::Value =
            serde_json::from_str(&Failure::new(Exit::Unreachable, "x", "y").json()).unwrap();
        assert_eq!(json["error"]["code"], "unreachable");
    }
}

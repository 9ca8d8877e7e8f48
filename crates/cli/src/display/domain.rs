//! A domain of libvirt that is moved: what is shown on the way and at the end.

use std::time::{Duration, Instant};

use linerate_api::{DomainEvent, Job, TunnelEvent};

use crate::context::Context;
use crate::failure::Failure;
use crate::render::format::{self, clean};

/// A terminal that cannot be redrawn gets a line this often.
const EVERY: Duration = Duration::from_secs(5);
/// Characters of the bar.
const BAR: usize = 24;

/// libvirt's own numbers in a line.
#[derive(Default)]
pub struct Line {
    last: Option<Instant>,
    /// The line that is redrawn has text.
    drawn: bool,
}

impl Line {
    /// A line for people beside it.
    pub fn print_line(&mut self, text: &str, context: &Context) {
        self.clear(context);
        context.print_line(text);
    }

    /// New numbers of the job.
    pub fn job(&mut self, job: &Job, context: &Context) {
        if context.err.live {
            self.draw(&line(job), context);
        } else if self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            context.print_line(&line(job));
        }
    }

    fn draw(&mut self, text: &str, context: &Context) {
        use std::io::Write;
        let cut: String = text.chars().take(context.err.width.saturating_sub(1)).collect();
        // A closed terminal needs no text.
        let _ = write!(std::io::stderr().lock(), "\r\x1b[K{cut}");
        self.drawn = true;
    }

    /// Takes the drawn line away.
    pub fn clear(&mut self, context: &Context) {
        if self.drawn {
            self.draw("", context);
            self.drawn = false;
        }
    }
}

/// What is shown of an event.
pub fn text(event: &DomainEvent) -> Option<String> {
    match event {
        DomainEvent::Mode { reason: Some(reason), .. } => {
            Some(clean(&format!("by libvirt's own migration: {reason}")))
        }
        DomainEvent::Warning { text } => Some(clean(text)),
        _ => None,
    }
}

/// The same of a tunnel. Its other end may have written parts of it.
pub fn tunnel_text(event: &TunnelEvent) -> Option<String> {
    let text = match event {
        TunnelEvent::LinkUp { link } => format!("link up: {link}"),
        TunnelEvent::LinkLost { link, reason } => format!("link lost: {link}: {reason}"),
        TunnelEvent::Refused { reason } => format!("a connection was refused: {reason}"),
        TunnelEvent::Warning { text } => format!("warning: {text}"),
        TunnelEvent::Ended { error } => format!("the tunnel ended: {}", error.message),
        _ => return None,
    };
    Some(clean(&text))
}

/// A domain that libvirt has moved.
#[derive(Clone, Debug)]
pub struct Arrived {
    pub domain: String,
    pub to: String,
    pub state: String,
    pub job: Option<Job>,
}

impl Arrived {
    pub fn print(&self, context: &Context) -> Result<(), Failure> {
        context.print(&report(&self.domain, &self.to, &self.state, self.job.as_ref()))
    }
}

fn number(job: &Job, key: &str) -> u64 {
    job.get(key).copied().unwrap_or(0)
}

/// One line: how much of memory and disks is over, how fast, how fast the guest writes.
fn line(job: &Job) -> String {
    let (total, left) = (number(job, "data_total"), number(job, "data_remaining"));
    let done = total.saturating_sub(left);
    let full = (BAR as u64 * done).checked_div(total).unwrap_or(0) as usize;
    let mut text = format!(
        "[{}{}] {} of {}",
        "#".repeat(full),
        ".".repeat(BAR - full),
        format::bytes(done),
        format::bytes(total)
    );
    if number(job, "disk_total") > 0 && number(job, "disk_remaining") > 0 {
        text += &format!(", disks: {} left", format::bytes(number(job, "disk_remaining")));
    }
    let rate = number(job, "memory_bps").max(number(job, "disk_bps"));
    if rate > 0 {
        text += &format!(", {}", format::bit_rate(rate));
    }
    if let Some(pages) = job.get("memory_dirty_rate").filter(|pages| **pages > 0) {
        let page = number(job, "memory_page_size").max(4096);
        text += &format!(", guest writes {}", format::bit_rate(pages * page));
    }
    if number(job, "memory_iteration") > 1 {
        text += &format!(", round {}", number(job, "memory_iteration"));
    }
    text
}

/// What is said at the end.
fn report(domain: &str, to: &str, state: &str, job: Option<&Job>) -> String {
    let mut text = format!("{} is {} at {}\n", clean(domain), clean(state), clean(to));
    if let Some(job) = job {
        let ms = |key| format::time_us(number(job, key) * 1000);
        text += &format!("  as a whole        {}\n", ms("time_elapsed"));
        text += &format!("  downtime          {}, as libvirt reports it\n", ms("downtime"));
        text += &format!("  memory            {}\n", format::bytes(number(job, "memory_processed")));
        if number(job, "disk_total") > 0 {
            text += &format!("  disks             {}\n", format::bytes(number(job, "disk_processed")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use linerate_api::ErrorBody;

    use super::*;

    fn job(numbers: &[(&str, u64)]) -> Job {
        numbers.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }

    #[test]
    fn text_of_the_other_host_cannot_control_the_terminal() {
        let evil = || "\x1b[2J\nweb is running at beta".to_owned();
        let error = ErrorBody::new("peer_lost", evil());
        for event in [
            TunnelEvent::LinkUp { link: evil() },
            TunnelEvent::LinkLost { link: evil(), reason: evil() },
            TunnelEvent::Refused { reason: evil() },
            TunnelEvent::Warning { text: evil() },
            TunnelEvent::Ended { error },
        ] {
            let shown = tunnel_text(&event).unwrap();
            assert!(!shown.contains(['\x1b', '\n']), "{shown:?}");
        }
        let shown = text(&DomainEvent::Warning { text: evil() }).unwrap();
        assert!(!shown.contains(['\x1b', '\n']), "{shown:?}");
        assert_eq!(report(&evil(), &evil(), &evil(), None).lines().count(), 1);
    }

    #[test]
    fn the_line_shows_the_progress() {
        let text = line(&job(&[
            ("data_total", 400 << 20),
            ("data_remaining", 100 << 20),
            ("memory_bps", 125_000_000),
            ("memory_dirty_rate", 100),
            ("memory_iteration", 2),
        ]));
        assert!(text.starts_with("[##################......]"), "{text}");
        assert!(text.contains("1.00 Gb/s") && text.ends_with("round 2"), "{text}");
        assert!(line(&Job::new()).starts_with("[........................]"));
    }
}

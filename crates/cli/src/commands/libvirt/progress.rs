//! What is shown on the way and at the end.

use std::time::{Duration, Instant};

use linerate_api::{Mode, TunnelEvent};

use super::virsh::Job;
use crate::context::Context;
use crate::documents::DomainEvent;
use crate::failure::Failure;
use crate::render::format;

/// A terminal that cannot be redrawn gets a line this often.
const EVERY: Duration = Duration::from_secs(5);
/// Characters of the bar.
const BAR: usize = 24;

/// Shows libvirt's own migration as it goes on.
pub struct Progress<'a> {
    context: &'a Context,
    quiet: bool,
    last_line: Option<Instant>,
    /// Something stands in the line that is redrawn.
    drawn: bool,
    /// What went wrong with the tunnel first, if anything did.
    trouble: Option<String>,
}

impl<'a> Progress<'a> {
    /// Nothing is shown yet.
    pub fn new(context: &'a Context, quiet: bool) -> Progress<'a> {
        Progress { context, quiet, last_line: None, drawn: false, trouble: None }
    }

    /// What went wrong with the tunnel first, if anything did.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Something happened to the tunnel.
    pub fn tunnel(&mut self, event: &TunnelEvent) -> Result<(), Failure> {
        if self.context.json {
            self.context.print_json_line(event)?;
        }
        let text = match event {
            TunnelEvent::LinkUp { link } => format!("link up: {link}"),
            TunnelEvent::LinkLost { link, reason } => format!("link lost: {link}: {reason}"),
            TunnelEvent::Refused { reason } => {
                let text = format!("a connection was refused: {reason}");
                self.trouble.get_or_insert_with(|| text.clone());
                text
            }
            TunnelEvent::Warning { text } => format!("warning: {text}"),
            TunnelEvent::Ended { error } => {
                let text = format!("the tunnel ended: {}", error.message);
                self.trouble.get_or_insert_with(|| text.clone());
                text
            }
            _ => return Ok(()),
        };
        self.say(&text);
        Ok(())
    }

    /// Which way the domain goes, and why not the other.
    pub fn mode(&mut self, direct: bool, reason: Option<&str>) -> Result<(), Failure> {
        let mode = if direct { Mode::Direct } else { Mode::Stream };
        if self.context.json {
            return self.context.print_json_line(&DomainEvent::Mode { mode, reason });
        }
        if let Some(reason) = reason {
            self.say(&format!("by libvirt's own migration: {reason}"));
        }
        Ok(())
    }

    /// Something that the operator should know.
    pub fn warn(&mut self, text: &str) -> Result<(), Failure> {
        if self.context.json {
            self.context.print_json_line(&DomainEvent::Warning { text })?;
        }
        self.say(text);
        Ok(())
    }

    /// The same where the output has gone wrong before: that is told at the end.
    pub fn note(&mut self, text: &str) {
        let _ = self.warn(text);
    }

    fn say(&mut self, text: &str) {
        if !(self.context.json || self.quiet) {
            self.clear();
            self.context.say(text);
        }
    }

    /// New numbers of the job.
    pub fn job(&mut self, job: &Job) -> Result<(), Failure> {
        if self.context.json {
            return self.context.print_json_line(&DomainEvent::Progress { job });
        }
        if self.quiet {
            return Ok(());
        }
        if self.context.err.live {
            self.draw(&line(job));
        } else if self.last_line.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last_line = Some(Instant::now());
            self.context.say(&line(job));
        }
        Ok(())
    }

    fn draw(&mut self, text: &str) {
        use std::io::Write;
        let cut: String = text.chars().take(self.context.err.width.saturating_sub(1)).collect();
        // A terminal that is gone is nobody's loss.
        let _ = write!(std::io::stderr().lock(), "\r\x1b[K{cut}");
        self.drawn = true;
    }

    /// Takes the drawn line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            self.draw("");
            self.drawn = false;
        }
    }

    pub fn completed(&self, domain: &str, to: &str, state: &str, job: Option<Job>) -> Result<(), Failure> {
        if self.context.json {
            let job = job.as_ref();
            return self.context.print_json_line(&DomainEvent::Completed { domain, to, state, job });
        }
        if self.quiet { Ok(()) } else { self.context.print(&report(domain, to, state, job.as_ref())) }
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
    let mut text = format!("{domain} is {state} at {to}\n");
    if let Some(job) = job {
        let ms = |key| format::time_us(number(job, key) * 1000);
        text += &format!("  as a whole        {}\n", ms("time_elapsed"));
        text += &format!("  stood still       {} by libvirt's word\n", ms("downtime"));
        text += &format!("  memory            {}\n", format::bytes(number(job, "memory_processed")));
        if number(job, "disk_total") > 0 {
            text += &format!("  disks             {}\n", format::bytes(number(job, "disk_processed")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(numbers: &[(&str, u64)]) -> Job {
        numbers.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }

    #[test]
    fn the_line_says_how_far_it_is() {
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

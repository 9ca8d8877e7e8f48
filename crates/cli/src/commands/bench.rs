//! `linerate bench pingpong | bandwidth`

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linerate_agent::bench::{Reason, Stop, local};
use linerate_api::{BenchEvent, BenchReport, BenchRequest, BenchStream, ClientError};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Interval, interval};

use super::progress::with_progress;
use crate::context::Context;
use crate::display::bench::BenchDisplay;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::flags::{BenchCommand, BenchFlags};
use crate::interrupts::Interrupts;
use crate::render::bench::report;
use crate::render::bench_charts;

const REDRAW: Duration = Duration::from_millis(100);

/// Where events come from.
enum Events {
    /// An agent, which stops when the stream is dropped.
    Agent(BenchStream),
    /// Both sides in this process.
    Here(UnboundedReceiver<BenchEvent>, Arc<Stop>),
}

impl Events {
    async fn next(&mut self) -> Result<BenchEvent, ClientError> {
        match self {
            Events::Agent(stream) => stream.next().await,
            Events::Here(events, _) => events.recv().await.ok_or(ClientError::BenchCut),
        }
    }
}

/// Measures and shows what was found.
pub async fn run(command: &BenchCommand, context: &Context) -> Result<Exit, Failure> {
    let (flags, request) = (command.flags(), command.request());
    let mut interrupts = Interrupts::listen()?;
    let events = match &flags.local {
        Some(addresses) => here(addresses.iter().map(|ip| SocketAddr::new(*ip, 0)).collect(), request)?,
        None => {
            let asked = context.client.bench(&request);
            let asked = with_progress("waiting for the agent".to_owned(), context.err, asked);
            let begun = interrupts.unless(asked).await.ok_or_else(cancelled)?;
            Events::Agent(begun?)
        }
    };
    let report = watch(events, interrupts, flags, context).await?;
    // What was measured is shown, also if a file of it cannot be written.
    let kept = keep(&report, flags);
    let screen = context.out;
    let output = context.answer(&report, || self::report(&report, screen.width, screen.paint));
    Failure::of_ended(kept.map(|()| Exit::Ok), output, Exit::Failed, context)
}

/// In a thread of its own, since it blocks.
fn here(addresses: Vec<SocketAddr>, request: BenchRequest) -> Result<Events, Failure> {
    let stop = Arc::new(Stop::default());
    let (sender, events) = unbounded_channel();
    let stopping = Arc::clone(&stop);
    let measuring = move || {
        // No receiver: the command has ended.
        let mut forward = |event| drop(sender.send(event));
        let last = local(&addresses, &request, &stopping, &mut forward);
        forward(last);
    };
    let thread = std::thread::Builder::new().name("bench".into()).spawn(measuring);
    thread.map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot start a thread to measure in: {error}"), "")
    })?;
    Ok(Events::Here(events, stop))
}

/// What may happen next.
enum Next {
    Event(Result<BenchEvent, ClientError>),
    Interrupt,
    Tick,
}

async fn next(events: &mut Events, interrupts: &mut Interrupts, ticks: &mut Interval) -> Next {
    tokio::select! {
        event = events.next() => Next::Event(event),
        () = interrupts.next() => Next::Interrupt,
        _ = ticks.tick() => Next::Tick,
    }
}

fn cancelled() -> Failure {
    Failure::new(Exit::Cancelled, "the measurement was cancelled", "")
}

/// To the end. Ctrl-C stops the measurement on both hosts.
async fn watch(
    mut events: Events,
    mut interrupts: Interrupts,
    flags: &BenchFlags,
    context: &Context,
) -> Result<BenchReport, Failure> {
    let mut display = BenchDisplay::new(context, flags.quiet);
    let mut ticks = interval(REDRAW);
    let ended = loop {
        match next(&mut events, &mut interrupts, &mut ticks).await {
            Next::Event(Ok(BenchEvent::Progress { fraction, until, expected_ms, doing })) => {
                display.progress(fraction, until, expected_ms, doing);
            }
            Next::Event(Ok(BenchEvent::Finished { error: Some(body), .. })) => {
                break Err(Failure::of_body(exit::of_body(&body), &body));
            }
            Next::Event(Ok(BenchEvent::Finished { report: Some(report), .. })) => break Ok(*report),
            Next::Event(Ok(BenchEvent::Finished { .. })) => break Err(ClientError::BenchCut.into()),
            Next::Event(Ok(BenchEvent::Unknown)) => {}
            Next::Event(Err(error)) => break Err(error.into()),
            Next::Interrupt => match &events {
                Events::Here(_, stop) => stop.stop(Reason::Cancelled),
                Events::Agent(_) => break Err(cancelled()),
            },
            Next::Tick => display.tick(),
        }
    };
    display.close();
    ended
}

/// Writes the files that were asked for.
fn keep(report: &BenchReport, flags: &BenchFlags) -> Result<(), Failure> {
    if let Some(file) = &flags.svg {
        write(file, &bench_charts::main_chart(report))?;
    }
    let Some(folder) = &flags.out else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| not_written(folder, &error))?;
    for (name, chart) in bench_charts::all(report) {
        write(&folder.join(name), &chart)?;
    }
    let json = serde_json::to_string_pretty(report).map_err(|error| Failure::output(&error.into()))?;
    let name = if report.pingpong.is_empty() { "bandwidth.json" } else { "pingpong.json" };
    write(&folder.join(name), &(json + "\n"))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| not_written(file, &error))
}

fn not_written(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{} cannot be written: {error}", file.display()), "")
}

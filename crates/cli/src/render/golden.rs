//! What the pictures look like, to the letter. `UPDATE_GOLDEN=1 cargo test -p linerate` draws them anew; look at the
//! difference before it is kept.

use std::path::Path;

use console::measure_text_width;
use linerate_api::{Event, EventKind, MigrationOutcome, Report, Step};

use super::golden_data::{progress, report as data};
use super::{frame::frame, paint::Paint, report::report};
use crate::display::view::View;

fn check(name: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(drawn, kept, "{name} is drawn otherwise now:\n{drawn}");
}

fn at(at_us: u64, kind: EventKind) -> Event {
    Event { at_us, kind }
}

fn copying() -> View {
    let mut view = View::new("web", "beta:7979", Some(300));
    for (step, us) in Step::ALL.iter().zip([310, 1_240, 840, 312_000, 41_300, 4_120]) {
        view.apply(&at(us, EventKind::step_started(*step)));
        view.apply(&at(us, EventKind::step_done(*step, us)));
    }
    view.apply(&at(360_000, EventKind::step_started(Step::Copy)));
    view.apply(&at(5_000_000, EventKind::Progress(Box::new(progress()))));
    view.apply(&at(5_000_000, EventKind::LinkLost { link: 1, reason: "no carrier at eth2".into() }));
    view
}

#[test]
fn frames() {
    for width in [79, 99] {
        let lines = frame(&copying(), 5_200_000, width, Paint::PLAIN);
        check(&format!("frame-{width}.txt"), &(lines.join("\n") + "\n"));
    }
}

#[test]
fn what_an_rdma_port_counts_is_shown_while_it_runs() {
    let mut rdma = progress();
    rdma.links[1].rdma_port = Some(linerate_api::RdmaPortTotals {
        port: "mlx5_1/1".into(),
        sent_bytes: Some(1 << 30),
        sent_packets: None,
        retransmits: Some(0),
        congestion_marks: Some(12),
        pauses: None,
    });
    let mut view = copying();
    view.apply(&at(5_100_000, EventKind::Progress(Box::new(rdma))));
    let lines = frame(&view, 5_200_000, 99, Paint::PLAIN);
    let line = "  eth2: RDMA port mlx5_1/1 counted 1073741824 bytes, 0 resent, 12 congestion marks";
    assert!(lines.iter().any(|drawn| drawn == line), "{lines:#?}");
}

#[test]
fn a_cancelled_frame_shows_where_it_stopped() {
    let mut view = copying();
    view.apply(&at(
        5_300_000,
        EventKind::Finished { outcome: MigrationOutcome::Cancelled, error: None, report: None },
    ));
    check("frame-cancelled.txt", &(frame(&view, 5_300_000, 99, Paint::PLAIN).join("\n") + "\n"));
}

#[test]
fn a_report_of_stream_mode_names_the_mode_and_the_reason() {
    let mut streams = data();
    streams.mode = linerate_api::Mode::Stream;
    streams.stream_channels = Some(2);
    streams.mode_reason = Some("direct: no, because RAM is its own".into());
    let drawn = report(&streams, 100, Paint::PLAIN);
    for expected in
        ["stream mode with 2 parallel channels", "rest of RAM, device state", "direct: no, because"]
    {
        assert!(drawn.contains(expected), "{expected} is not in\n{drawn}");
    }
}

#[test]
fn disks_that_go_along_have_a_line_of_their_own() {
    let mut view = copying();
    if let Some(progress) = &mut view.progress {
        progress.disks = Some(linerate_api::DiskProgress {
            total_bytes: 8 << 30,
            done_bytes: 2 << 30,
            pass: 3,
            write_rate_bytes_per_s: Some(250_000_000),
        });
    }
    check("frame-disks.txt", &(frame(&view, 5_200_000, 99, Paint::PLAIN).join("\n") + "\n"));
    let mut report_of = data();
    report_of.disks = Some(linerate_api::DiskTotals {
        count: 2,
        copied_bytes: 9 << 30,
        sent_bytes: 3 << 30,
        alone_us: 4_200_000,
    });
    let drawn = report(&report_of, 100, Paint::PLAIN);
    assert!(drawn.contains("2: 9.00 GiB copied, 3.00 GiB sent; 4.20 s before the memory"), "{drawn}");
}

#[test]
fn a_migration_that_carried_nothing_shows_no_rate() {
    let none =
        Report { outcome: MigrationOutcome::Cancelled, goodput_bytes_per_s: 0, blackout: None, ..data() };
    let drawn = report(&none, 100, Paint::PLAIN);
    assert!(!drawn.contains("Goodput") && !drawn.contains(" 0 b/s during"), "{drawn}");
    assert!(drawn.contains("  Mode      direct mode"), "{drawn}");
}

#[test]
fn reports() {
    for width in [80, 100] {
        check(&format!("report-{width}.txt"), &report(&data(), width, Paint::PLAIN));
    }
}

#[test]
fn nothing_is_wider_than_the_terminal() {
    for width in [40, 60, 80, 100, 200] {
        for line in frame(&copying(), 5_200_000, width, Paint { colours: true }) {
            assert!(measure_text_width(&line) <= width, "{width}: {line}");
        }
    }
    for width in [80, 100] {
        for line in report(&data(), width, Paint { colours: true }).lines() {
            assert!(measure_text_width(line) <= width, "{width}: {line}");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let plain = report(&data(), 100, Paint::PLAIN);
    let coloured = report(&data(), 100, Paint { colours: true });
    assert_ne!(plain, coloured);
    assert_eq!(console::strip_ansi_codes(&coloured), plain);
}

#[test]
fn a_narrow_terminal_gives_up_addresses_before_figures() {
    let mut view = copying();
    for link in view.progress.iter_mut().flat_map(|progress| &mut progress.links) {
        link.local = "[2001:db8:1234:5678:9abc:def0:1234:5678]:40112".into();
        link.remote = "[2001:db8:1234:5678:9abc:def0:1234:9abc]:7475".into();
    }
    let drawn = frame(&view, 5_200_000, 79, Paint::PLAIN).join("\n");
    assert!(!drawn.contains("2001:db8") && drawn.contains("60 %") && drawn.contains("2.46 Gb/s"), "{drawn}");
    assert!(
        frame(&view, 5_200_000, 200, Paint::PLAIN)
            .join("\n")
            .contains("2001:db8:1234:5678:9abc:def0:1234:9abc")
    );
}

#[test]
fn the_user_guide_shows_what_is_drawn() {
    let guide = include_str!("../../../../docs/user-guide.md");
    let drawn = frame(&copying(), 5_200_000, 79, Paint::PLAIN).join("\n");
    assert!(guide.contains(&drawn), "the user guide shows another display than:\n{drawn}");
    let drawn = report(&data(), 80, Paint::PLAIN);
    assert!(guide.contains(drawn.trim()), "the user guide shows another report than:\n{drawn}");
}

//! `docs/protocol.md` lists every number and name as the code has it, and nothing else.

use linerate_wire::fault::{Code, Side, Step};
use linerate_wire::frame::{Role, SequenceRule, Tag};
use linerate_wire::message::{MessageTag, ModeTag, Outcome, StreamNoteTag};

/// Rows of the one table that has this heading, as trimmed cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let mut lines = page().lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "no table with heading {heading}");
    lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn cells(row: &str) -> Vec<String> {
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

fn page() -> &'static str {
    include_str!("../../../docs/protocol.md")
}

/// The first cells of each row.
fn expect<const N: usize>(table: &[Vec<String>], rows: impl Iterator<Item = [String; N]>) {
    let documented: Vec<&[String]> = table.iter().map(|row| &row[..N]).collect();
    assert_eq!(documented, rows.collect::<Vec<_>>());
}

fn range(min: u32, max: u32) -> String {
    if min == max { min.to_string() } else { format!("{min} to {max}") }
}

#[test]
fn tags() {
    let rows = Tag::ALL.iter().map(|tag| {
        let sequence = match tag.sequence_rule() {
            SequenceRule::Zero => "0",
            SequenceRule::FromOne => "from 1",
            SequenceRule::Any => "any",
        };
        [
            format!("`{:#04x}`", *tag as u16),
            tag.name().to_owned(),
            range(tag.body_length_min(), tag.body_length_max()),
            range(0, tag.payload_length_max()),
            sequence.to_owned(),
        ]
    });
    expect(&table("| number | tag | body bytes | payload bytes | sequence |"), rows);
}

#[test]
fn messages() {
    let rows = MessageTag::ALL.iter().map(|tag| [format!("`{:#04x}`", *tag as u16), tag.name().to_owned()]);
    expect(&table("| number | message | direction | fields |"), rows);
}

#[test]
fn modes() {
    let rows = ModeTag::ALL.iter().map(|tag| [(*tag as u8).to_string(), format!("{tag:?}")]);
    let heading =
        "| number | mode | fields | RAM | device state | who decides which hypervisor runs the guest |";
    expect(&table(heading), rows);
}

#[test]
fn codes() {
    let rows = Code::ALL.iter().map(|code| {
        let retry = if code.retry_can_help() { "yes" } else { "no" };
        [(*code as u16).to_string(), format!("{code:?}"), code.sentence().to_owned(), retry.to_owned()]
    });
    expect(&table("| number | code | meaning | same request can succeed later |"), rows);
}

#[test]
fn roles_and_outcomes() {
    let roles = Role::ALL.iter().map(|role| [(*role as u8).to_string(), format!("{role:?}")]);
    expect(&table("| number | role | what the connection is for |"), roles);
    let notes = StreamNoteTag::ALL.iter().map(|tag| [(*tag as u8).to_string(), format!("{tag:?}")]);
    expect(&table("| number | note | fields |"), notes);
    let outcomes = (0..=u8::MAX).filter_map(Outcome::from_number);
    let rows = outcomes.map(|outcome| [(outcome as u8).to_string(), format!("{outcome:?}")]);
    expect(&table("| number | outcome | what the source does |"), rows);
}

#[test]
fn steps_and_sides() {
    let steps: Vec<String> = Step::ALL.iter().map(|step| format!("{} {step}", *step as u8)).collect();
    let sides: Vec<String> =
        (0..=u8::MAX).filter_map(Side::from_number).map(|side| format!("{} {side}", side as u8)).collect();
    for line in [format!("Steps: {}.", steps.join(", ")), format!("Sides: {}.", sides.join(", "))] {
        assert!(page().contains(&line), "not in the page: {line}");
    }
}

//! For a tired person: worst first, one line each.

use crate::model::{Finding, Room};

use super::{clean, summary, word};

/// One line for each finding; with `details` what was seen side by side, why it matters and what to do.
pub fn text(room: &Room, findings: &[Finding], details: bool) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let mut lines = Vec::new();
    for finding in sorted {
        lines.push(format!("{:<7}  {}", word(finding.severity), clean(&headline(finding))));
        if details {
            lines.extend(more(finding));
        }
    }
    lines.push(summary(room, findings));
    lines.join("\n") + "\n"
}

/// Where, what, and which finding it is. Long lists of places are cut: `--details` has them all.
pub(super) fn headline(finding: &Finding) -> String {
    let mut places: Vec<String> = finding.places.iter().take(3).map(ToString::to_string).collect();
    if finding.places.len() > 3 {
        places.push(format!("{} more", finding.places.len() - 3));
    }
    let places = if places.is_empty() { String::new() } else { format!("{}: ", places.join(", ")) };
    format!("{places}{} [{}]", finding.title, finding.id)
}

fn more(finding: &Finding) -> Vec<String> {
    let columns: Vec<[String; 3]> = finding
        .seen
        .iter()
        .map(|seen| [clean(&seen.place.to_string()), clean(&seen.what), clean(&seen.value)])
        .collect();
    let width = |column: usize| {
        columns.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let (first, second) = (width(0).unwrap_or(0), width(1).unwrap_or(0));
    let mut lines: Vec<String> = columns
        .iter()
        .map(|[place, what, value]| format!("         {place:<first$}  {what:<second$}  {value}"))
        .collect();
    lines.push(format!("         why:  {}", clean(&finding.why)));
    for fix in &finding.fixes {
        let place = fix.place.as_ref().map(|place| format!("{}: ", place.host)).unwrap_or_default();
        lines.push(clean(&format!("         do:   {place}{}", fix.what)));
        lines.extend(fix.command.as_ref().map(|command| format!("               {}", clean(command))));
    }
    lines.push(format!("         more: {}", finding.page));
    lines.push(String::new());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_all;
    use crate::testing::{healthy_room, port};

    #[test]
    fn worst_first_one_line_each() {
        let mut room = healthy_room();
        port(&mut room, "gamma", "ens1f0").firmware = Some("14.20.1010".into());
        port(&mut room, "alpha", "ens1f0").carrier_changes = Some(99);
        port(&mut room, "beta", "ens1f1").mtu = Some(1500);
        let golden = "\
error    beta ens1f1: MTU 1500 and 9000 on the same network 10.1.1.0/24 [mtu-between-hosts]
warning  alpha ens1f0: the link came or went 99 times [link-flapping]
hint     gamma ens1f0: firmware 14.20.1010 and 14.32.1900 on equal adapters (15b3:1015) [firmware-differs]
3 hosts: errors 1, warnings 1, hints 1
";
        assert_eq!(text(&room, &run_all(&room), false), golden);
    }

    #[test]
    fn details_on_demand() {
        let mut room = healthy_room();
        port(&mut room, "alpha", "ens1f0").carrier_changes = Some(99);
        let golden = "\
warning  alpha ens1f0: the link came or went 99 times [link-flapping]
         alpha ens1f0  carrier changes  99
         why:  Each time, the channels of a running migration on this link are lost, and what was under way is sent again on other links.
         do:   change cable and transceiver, then the switch port; set speed, negotiation and FEC alike on both sides
         do:   alpha: see when
               journalctl -k | grep ens1f0
         more: docs/findings.md#link-flapping

3 hosts: errors 0, warnings 1, hints 0
";
        assert_eq!(text(&room, &run_all(&room), true), golden);
    }

    #[test]
    fn nothing_found_is_said_and_names_cannot_steer_the_terminal() {
        assert_eq!(text(&healthy_room(), &[], true), "3 hosts: nothing found\n");
        let evil = Finding::new("x", crate::model::Severity::Error, "\x1b[2Jgone\nnext");
        let shown = text(&Room::default(), &[evil], true);
        assert!(!shown.contains('\x1b') && !shown.contains("gone\n"), "{shown:?}");
    }
}

//! What `linerate doctor --fix` would do and did, for people.

use linerate_api::LinkConfirm;
use linerate_fabric::fix::{FixPlan, Unfixed};
use linerate_fabric::link::PortStep;
use linerate_fabric::model::Finding;

use super::format::clean;
use super::qos;
use super::table::wrap;
use crate::context::Screen;

/// The end of a plan that is only shown.
pub const DRY_RUN: &str = "nothing was changed (dry run)\n";

/// Ports with what changes, and what is left to the operator.
pub fn plan(plan: &FixPlan, screen: Screen) -> String {
    let mut lines = vec![screen.paint.bold("to be set:")];
    if plan.is_empty() {
        lines.push("  nothing that Linerate can set".to_owned());
    }
    lines.extend(to_do(plan).iter().map(|line| clean(line)));
    if !plan.unfixed.is_empty() {
        lines.push(screen.paint.bold("left as it is:"));
    }
    lines.extend(plan.unfixed.iter().flat_map(|unfixed| self::unfixed(unfixed, screen.width)));
    lines.join("\n") + "\n"
}

fn to_do(plan: &FixPlan) -> Vec<String> {
    let mut lines = Vec::new();
    for one in &plan.ports {
        let ids = one.findings.join(", ");
        let step = |step: &PortStep| {
            format!("  {}: {} {} → {}  [{ids}]", one.location, step.what, step.from, step.to)
        };
        lines.extend(one.plan.steps.iter().map(step));
        lines.extend(one.plan.warnings.iter().map(|warning| format!("    warning: {warning}")));
    }
    for host in &plan.intents {
        lines.push(format!("  {} as the intent says  [{}]", host.plan.host, host.findings.join(", ")));
        let text = qos::plans(std::slice::from_ref(&host.plan), &[]);
        lines.extend(text.lines().map(|line| format!("    {line}")));
    }
    lines
}

fn unfixed(unfixed: &Unfixed, width: usize) -> Vec<String> {
    let locations: Vec<String> = unfixed.locations.iter().map(ToString::to_string).collect();
    let text = clean(&format!("{} [{}]: {}", locations.join(", "), unfixed.finding, unfixed.why));
    let indent = ["  "].into_iter().chain(std::iter::repeat("    "));
    let lines = wrap(&text, width.saturating_sub(4).max(20));
    lines.iter().zip(indent).map(|(line, indent)| format!("{indent}{line}")).collect()
}

/// After the second look.
pub fn gone(goals: &[Finding]) -> String {
    let mut ids: Vec<&str> = goals.iter().map(|finding| finding.id.as_str()).collect();
    ids.dedup();
    clean(&format!("looked again: {} gone, no new finding", ids.join(", "))) + "\n"
}

/// Findings of the first look that the second one does not measure; nothing if there are none.
pub fn not_measured_again(findings: &[Finding]) -> String {
    let text = |one: &Finding| clean(&format!("not measured again: {} ({})", one.title, one.id)) + "\n";
    findings.iter().map(text).collect()
}

/// The question that decides whether a fix is kept.
pub fn keep(within_s: u32) -> String {
    format!("Keep it? (without an answer all is put back {within_s} s after it was set)")
}

/// A port on trial.
pub fn location(port: &LinkConfirm) -> String {
    clean(&match &port.host {
        Some(host) => format!("{} of {host}", port.port),
        None => port.port.clone(),
    })
}

#[cfg(test)]
mod tests {
    use linerate_fabric::checks::run_all;
    use linerate_fabric::fix::plan_fixes;
    use linerate_fabric::model::{Address, Inventory, Port, PortKind, Survey};

    use super::*;
    use crate::render::paint::Paint;

    const SCREEN: Screen = Screen { width: 100, paint: Paint::PLAIN, live: false };

    #[test]
    fn a_plan_names_host_port_values_and_what_is_left() {
        let host = |name: &str, last: u8, mtu: u32| {
            let ip = [10, 0, 0, last].into();
            let addresses = vec![Address { ip, prefix: 24 }];
            let kind = PortKind::Physical;
            let port = Port { name: "l0".into(), kind, mtu: Some(mtu), addresses, ..Port::default() };
            Inventory { ports: vec![port], ..Inventory::new(name) }
        };
        let survey = Survey::of(vec![host("a\x1b[2J", 1, 9000), host("b", 2, 1500)]);
        let text = plan(&plan_fixes(&survey, &run_all(&survey), None), SCREEN);
        assert!(text.contains("  b l0: MTU 1500 → 9000  [mtu-between-hosts]"), "{text}");
        assert!(
            text.contains("left as it is:") && text.contains("[no-second-link]: it needs hands"),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "{text:?}");
        assert!(plan(&FixPlan::default(), SCREEN).contains("nothing that Linerate can set"));
    }
}

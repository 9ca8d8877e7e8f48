//! `linerate qos plan` and `check` for people: a line for each thing that changes, or that cannot be.

use linerate_api::UnreachableHost;
use linerate_fabric::qos::plan::{HostPlan, PortPlan};

use super::format::clean;

/// Each host with its ports, then hosts that could not be asked.
pub fn plans(hosts: &[HostPlan], unreachable: &[UnreachableHost]) -> String {
    let mut lines: Vec<String> = hosts.iter().flat_map(host).collect();
    if hosts.is_empty() {
        lines.push("no host was looked at".to_owned());
    }
    lines.extend(unreachable.iter().map(|one| format!("{}: could not be asked: {}", one.host, one.why)));
    lines.iter().map(|line| clean(line) + "\n").collect()
}

fn host(plan: &HostPlan) -> Vec<String> {
    let mut lines: Vec<String> = plan.ports.iter().flat_map(|port| self::port(&plan.host, port)).collect();
    let rate =
        plan.migration_bytes_per_s.map(|bytes| format!("`linerate migrate --bandwidth {}`", gigabits(bytes)));
    let mark = plan.type_of_service.map(|byte| format!("`rdma_type_of_service = {byte}` for the agent"));
    let own: Vec<String> = [rate, mark].into_iter().flatten().collect();
    if !own.is_empty() {
        lines.push(format!("{}: migrations keep to it by {}", plan.host, own.join(" and ")));
    }
    lines
}

fn port(host: &str, plan: &PortPlan) -> Vec<String> {
    let name = format!("{host} {}", plan.port);
    if let Some(problem) = &plan.problem {
        return vec![format!("{name}: cannot be: {problem}")];
    }
    let steps =
        plan.plan.steps.iter().map(|step| format!("{name}: {} {} → {}", step.what, step.from, step.to));
    let mut lines: Vec<String> = steps.collect();
    if lines.is_empty() {
        lines.push(format!("{name}: as the intent says"));
    }
    lines.extend(plan.plan.warnings.iter().map(|warning| format!("{name}: warning: {warning}")));
    lines
}

/// As `--bandwidth` takes it: `25G`, `12500M`.
fn gigabits(bytes_per_s: u64) -> String {
    let megabits = bytes_per_s / 125_000;
    if megabits.is_multiple_of(1000) { format!("{}G", megabits / 1000) } else { format!("{megabits}M") }
}

#[cfg(test)]
mod tests {
    use linerate_fabric::link::{Plan, PortStep};

    use super::*;

    fn port(name: &str, plan: Plan, problem: Option<&str>) -> PortPlan {
        PortPlan { port: name.into(), plan, problem: problem.map(str::to_owned) }
    }

    #[test]
    fn a_line_for_everything() {
        let plan = Plan {
            steps: vec![PortStep { what: "lossless priorities".into(), from: "none".into(), to: "3".into() }],
            warnings: vec!["the link may go down\x1b[2J".into()],
            ..Plan::default()
        };
        let hosts = [HostPlan {
            host: "alpha".into(),
            ports: vec![
                port("ens1f0", plan, None),
                port("ens1f1", Plan::default(), None),
                port("eno1", Plan::default(), Some("eno1 of alpha (driver tg3) has no DCB")),
            ],
            migration_bytes_per_s: Some(3_125_000_000),
            type_of_service: Some(104),
        }];
        let silent = UnreachableHost { host: "beta".into(), why: "no route".into() };
        let text = plans(&hosts, &[silent]);
        assert!(!text.contains('\x1b'), "{text:?}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "alpha ens1f0: lossless priorities none → 3");
        assert!(lines[1].starts_with("alpha ens1f0: warning: the link may go down"));
        assert_eq!(
            lines[2..],
            [
                "alpha ens1f1: as the intent says",
                "alpha eno1: cannot be: eno1 of alpha (driver tg3) has no DCB",
                "alpha: migrations keep to it by `linerate migrate --bandwidth 25G` and `rdma_type_of_service = 104` for the agent",
                "beta: could not be asked: no route",
            ]
        );
    }

    #[test]
    fn rates_that_the_command_line_takes() {
        for (bytes, text) in [(3_125_000_000, "25G"), (1_562_500_000, "12500M"), (62_500_000, "500M")] {
            assert_eq!(gigabits(bytes), text);
            assert_eq!(crate::units::rate(text), Ok(bytes));
        }
    }
}

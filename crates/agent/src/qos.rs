//! `linerate qos apply`: this host's ports get the settings of an intent, each on trial like those of `linerate link
//! set`.

use std::sync::Arc;

use linerate_api::{ErrorBody, LinkAnswer, QosAnswer, QosRequest};
use linerate_fabric::link::Plan;
use linerate_fabric::model::{Inventory, Port};
use linerate_fabric::qos::intent::{self, Intent};
use linerate_fabric::qos::plan::{HostPlan, PortPlan, host, port_plan};

use crate::doctor::network_here;
use crate::trial::{self, Begun, Trials};

/// Sets what the intent has for this host; nothing at all if one port cannot have it.
pub fn apply(trials: &Arc<Trials>, request: &QosRequest) -> Result<QosAnswer, ErrorBody> {
    trial::check_time_limit(request.confirm_within_s)?;
    let intent = intent::parse(&request.intent).map_err(|error| {
        trial::refuse(error.to_string()).with_hint("docs/qos.md describes the file, with an example")
    })?;
    let inventory = network_here(&trials.doctor);
    let plan = host(&inventory, &intent);
    possible(&plan)?;
    let changes = |one: &&PortPlan| !request.dry_run && !one.plan.steps.is_empty();
    let changing: Vec<&PortPlan> = plan.ports.iter().filter(changes).collect();
    all(trials, &changing, request.confirm_within_s, |one| change(trials, &inventory, one, &intent))?;
    let within = |one: &PortPlan| changes(&one).then_some(request.confirm_within_s);
    Ok(QosAnswer { ports: plan.ports.iter().map(|one| answer(one, within(one))).collect() })
}

/// All ports or none: half of an intent is none. The time to confirm begins when the last one is done.
fn all(
    trials: &Arc<Trials>,
    ports: &[&PortPlan],
    within_s: u32,
    mut change: impl FnMut(&PortPlan) -> Result<Begun, ErrorBody>,
) -> Result<(), ErrorBody> {
    let mut begun = Vec::new();
    for one in ports {
        match change(one) {
            Ok(one) => begun.push(one),
            Err(error) => return Err(trial::give_up(trials, &begun, error)),
        }
    }
    trial::start(trials, begun, within_s)
}

fn possible(plan: &HostPlan) -> Result<(), ErrorBody> {
    let problems: Vec<&str> = plan.ports.iter().filter_map(|port| port.problem.as_deref()).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(trial::refuse(problems.join("\n")).with_hint("nothing was changed")),
    }
}

fn change(
    trials: &Trials,
    inventory: &Inventory,
    one: &PortPlan,
    intent: &Intent,
) -> Result<Begun, ErrorBody> {
    let missing = |name: &str| {
        trial::refuse(format!("{name} does not exist any more on {}", trials.doctor.config.name))
    };
    let port = inventory.port(&one.port).ok_or_else(|| missing(&one.port))?;
    // What the driver passed over in silence is seen here.
    let read = || -> Result<(Port, String), ErrorBody> {
        let now = network_here(&trials.doctor);
        let port = now.port(&one.port).ok_or_else(|| missing(&one.port))?;
        Ok((port.clone(), left(&now, port, intent)))
    };
    trial::change(trials, port, &one.plan, &read)
}

fn left(now: &Inventory, port: &Port, intent: &Intent) -> String {
    port_plan(now, port, intent).map_or_else(|error| error.to_string(), |plan| trial::describe(&plan))
}

fn answer(one: &PortPlan, confirm_within_s: Option<u32>) -> LinkAnswer {
    let Plan { steps, warnings, .. } = &one.plan;
    LinkAnswer {
        port: one.port.clone(),
        steps: steps.iter().map(trial::step).collect(),
        warnings: warnings.clone(),
        applied: confirm_within_s.is_some(),
        confirm_within_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::tests::{agent, begin_nothing, on_trial};

    fn ports(names: [&str; 2]) -> [PortPlan; 2] {
        names.map(|name| PortPlan { port: name.into(), plan: Plan::default(), problem: None })
    }

    #[test]
    fn time_to_confirm_begins_with_the_last_port() {
        let (_folder, agent) = agent();
        let [first, second] = ports(["lo", "other"]);
        all(&agent.trials, &[&first, &second], 1, |one| {
            if one.port == "other" {
                std::thread::sleep(std::time::Duration::from_secs(3));
                assert!(on_trial(&agent.trials, "lo"), "put back while the next port was being set");
            }
            Ok(begin_nothing(&agent.trials, &one.port))
        })
        .unwrap();
    }

    #[test]
    fn half_an_intent_reports_the_state_of_each_port() {
        let (_folder, agent) = agent();
        let [first, second] = ports(["lo", "no-such-port"]);
        let third = PortPlan { port: "third".into(), ..second.clone() };
        let error = all(&agent.trials, &[&first, &second, &third], 60, |one| match one.port.as_str() {
            "third" => Err(trial::refuse("third does not take it".into())),
            name => Ok(begin_nothing(&agent.trials, name)),
        })
        .unwrap_err();
        let message = error.message;
        assert!(message.starts_with("third does not take it; lo was put back; "), "{message}");
        assert!(
            message.contains("no-such-port could NOT be put back: there is no port no-such-port"),
            "{message}"
        );
        assert!(!on_trial(&agent.trials, "lo"));
    }
}

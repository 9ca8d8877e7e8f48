//! `linerate qos apply`: this host's ports become as an intent says, each on trial like those of `linerate link set`.

use std::sync::Arc;
use std::time::Duration;

use linerate_api::{ErrorBody, LinkAnswer, QosAnswer, QosRequest};
use linerate_fabric::link::Plan;
use linerate_fabric::model::{Inventory, Port};
use linerate_fabric::qos::intent::{self, Intent};
use linerate_fabric::qos::plan::{HostPlan, PortPlan, host, port_plan};

use crate::agent::Agent;
use crate::doctor::inventory_here;
use crate::trial;

/// Does what the intent says; nothing at all if one port cannot have it.
pub fn apply(agent: &Arc<Agent>, request: &QosRequest) -> Result<QosAnswer, ErrorBody> {
    trial::within(request.confirm_within_s)?;
    let intent = intent::parse(&request.intent).map_err(|error| {
        trial::refuse(error.to_string()).with_hint("docs/qos.md describes the file, with an example")
    })?;
    let inventory = inventory(agent);
    let plan = host(&inventory, &intent);
    possible(&plan)?;
    let mut begun = Vec::new();
    let mut ports = Vec::new();
    for one in &plan.ports {
        let applied = !request.dry_run && !one.plan.steps.is_empty();
        if applied {
            match change(agent, &inventory, one, &intent, request.confirm_within_s) {
                Ok(number) => begun.push((one.port.as_str(), number)),
                Err(error) => {
                    // Half of an intent is none.
                    begun.iter().for_each(|(port, number)| trial::end(agent, port, *number));
                    return Err(error);
                }
            }
        }
        ports.push(answer(one, applied.then_some(request.confirm_within_s)));
    }
    Ok(QosAnswer { ports })
}

fn inventory(agent: &Agent) -> Inventory {
    inventory_here(agent, Duration::ZERO, Vec::new())
}

fn possible(plan: &HostPlan) -> Result<(), ErrorBody> {
    let problems: Vec<&str> = plan.ports.iter().filter_map(|port| port.problem.as_deref()).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(trial::refuse(problems.join("\n")).with_hint("nothing was changed")),
    }
}

fn change(
    agent: &Arc<Agent>,
    inventory: &Inventory,
    one: &PortPlan,
    intent: &Intent,
    within_s: u32,
) -> Result<u64, ErrorBody> {
    let missing = |name: &str| trial::refuse(format!("{name} is gone from {}", agent.config.name));
    let port = inventory.port(&one.port).ok_or_else(|| missing(&one.port))?;
    // What the driver passed over in silence is seen here.
    let look = || -> Result<(Port, String), ErrorBody> {
        let now = self::inventory(agent);
        let port = now.port(&one.port).ok_or_else(|| missing(&one.port))?;
        Ok((port.clone(), left(&now, port, intent)))
    };
    trial::try_it(agent, port, &one.plan, within_s, &look)
}

fn left(now: &Inventory, port: &Port, intent: &Intent) -> String {
    port_plan(now, port, intent).map_or_else(|error| error.to_string(), |plan| trial::words(&plan))
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

//! Whether the guest has run guests of its own: KVM counts that.

use std::time::Instant;

use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError};

/// Whether any virtual CPU has entered a nested guest by now. False if QEMU does not know (before 7.1).
pub fn has_run_guests(qmp: &mut Qmp, deadline: Instant) -> Result<bool, QmpError> {
    let question = json!({ "target": "vcpu", "providers": [{ "provider": "kvm", "names": ["nested_run"] }] });
    match qmp.execute("query-stats", question, deadline) {
        Ok(answer) => Ok(has_run(&answer)),
        Err(QmpError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn has_run(answer: &Value) -> bool {
    let cpus = answer.as_array().into_iter().flatten();
    let stats = cpus.filter_map(|cpu| cpu.get("stats")?.as_array()).flatten();
    let runs = stats.filter(|stat| stat.get("name").and_then(Value::as_str) == Some("nested_run"));
    runs.filter_map(|stat| stat.get("value")?.as_u64()).any(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_that_ran_a_nested_guest_is_enough() {
        let cpu = |runs: u64| {
            json!({ "provider": "kvm", "qom-path": "/machine/unattached/device[0]",
                "stats": [{ "name": "exits", "value": 7 }, { "name": "nested_run", "value": runs }] })
        };
        assert!(has_run(&json!([cpu(0), cpu(3)])));
        assert!(!has_run(&json!([cpu(0), cpu(0)])));
        assert!(!has_run(&json!([])));
    }
}

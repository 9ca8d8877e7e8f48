//! The processor of a domain that has all that its host's can. libvirt compares nothing then, and QEMU leaves out what
//! the other host cannot do: the domain would end at the first instruction that is gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::{ErrorBody, Side};
use linerate_fabric::probe::{Answer, Question};
use linerate_store::fleet::records::HostRecord;

use super::internal;
use super::target::Target;
use super::virsh::Virsh;
use crate::cpu;
use crate::doctor::sides::find;
use crate::faults::chain;
use crate::security::Security;

/// The destination's agent answers within this. It asks its guests and its QEMUs once.
const ASK_WAIT: Duration = Duration::from_secs(30);

/// Whether the domain with this XML has all that its host's processor can. libvirt indents each part of a domain by two
/// blanks, and what others have put into its metadata by more.
pub(super) fn is_hosts(xml: &str) -> bool {
    let begins = |with: &str| xml.lines().find(|line| line.starts_with(with)).unwrap_or_default();
    let cpu = begins("  <cpu ");
    // Without KVM it is what QEMU itself can.
    let has_all = cpu.contains("mode='maximum'") && begins("<domain ").contains("type='kvm'");
    has_all || cpu.contains("mode='host-passthrough'")
}

/// Refuses a destination whose processor cannot do what the domain has here. Returns a warning if that is not known.
pub(super) async fn check(
    security: &Arc<Security>,
    domain: &Target,
    here: &Virsh,
    to: &str,
) -> Result<Option<String>, ErrorBody> {
    if !is_hosts(&here.run(&["dumpxml", &domain.uuid]).await?) {
        return Ok(None);
    }
    let (security, asked) = (security.clone(), to.to_owned());
    let asking = tokio::task::spawn_blocking(move || features_of(&asked, &security)).await;
    let there = asking.map_err(|error| internal(format!("a defect in the agent: {error}")))?;
    judge(domain, to, &cpu::of_guests(cpu::own_features()), there)
}

/// What the other host's processor can; otherwise why that is not known.
fn features_of(to: &str, security: &Arc<Security>) -> Result<BTreeSet<String>, String> {
    match find(to, &Question::Host, ASK_WAIT, security) {
        Ok((_, Answer::Host { record, .. })) => {
            let record: HostRecord = serde_json::from_value(*record).map_err(|error| chain(&error))?;
            Ok(record.cpu_features)
        }
        Ok((_, Answer::Refused { why })) => Err(why),
        Ok(_) => Err("its agent answers another question: is it of another version?".to_owned()),
        Err(error) => Err(chain(&error)),
    }
}

/// `has`: what the domain may use.
fn judge(
    domain: &Target,
    to: &str,
    has: &BTreeSet<String>,
    there: Result<BTreeSet<String>, String>,
) -> Result<Option<String>, ErrorBody> {
    let there = match there {
        Ok(there) => there,
        Err(why) => {
            return Ok(Some(format!(
                "the domain has all that its host's processor can, and it is not known whether that of {to} can as \
                 much: {why}"
            )));
        }
    };
    let lacking: Vec<&str> = has.difference(&there).map(String::as_str).collect();
    if lacking.is_empty() {
        return Ok(None);
    }
    let text = format!(
        "the domain {} has all that its host's processor can, and that of {to} lacks {}; nothing was begun",
        domain.name,
        lacking.join(", ")
    );
    let hint = "start the domain with a CPU model that both hosts can, not with host-passthrough or maximum";
    let side = Some(Side::Destination);
    Err(ErrorBody { side, ..ErrorBody::new("resource_missing", text).with_hint(hint) })
}

#[cfg(test)]
mod tests {
    use super::super::testing::target;
    use super::*;

    #[test]
    fn a_domain_has_its_hosts_processor_if_its_xml_says_so() {
        let xml = |kind: &str, cpu: &str| {
            let metadata = "  <metadata>\n    <cpu mode='host-passthrough'/>\n  </metadata>";
            format!("<domain type='{kind}' id='1'>\n  <name>web</name>\n{metadata}\n{cpu}</domain>\n")
        };
        let all = "  <cpu mode='maximum' check='none'>\n    <topology sockets='1'/>\n  </cpu>\n";
        for (cpu, is) in [
            ("  <cpu mode='host-passthrough' check='none' migratable='on'/>\n", true),
            (all, true),
            (
                "  <cpu mode='custom' match='exact' check='full'>\n    <model>Skylake</model>\n  </cpu>\n",
                false,
            ),
            ("  <cputune>\n  </cputune>\n", false),
            ("", false),
        ] {
            assert_eq!(is_hosts(&xml("kvm", cpu)), is, "{cpu}");
        }
        assert!(!is_hosts(&xml("qemu", all)), "QEMU's own processor is the same everywhere");
    }

    #[test]
    fn a_destination_that_lacks_a_feature_of_the_domain_is_refused_and_one_with_more_is_not() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let has = set(&["avx2", "maker GenuineIntel"]);
        let judged = |there: &[&str]| judge(&target(), "beta", &has, Ok(set(there)));
        assert_eq!(judged(&["avx2", "avx512f", "maker GenuineIntel"]).unwrap(), None);
        let refused = judged(&["avx512f", "maker AuthenticAMD"]).unwrap_err();
        assert_eq!((refused.code.as_str(), refused.side), ("resource_missing", Some(Side::Destination)));
        assert!(refused.message.contains("lacks avx2, maker GenuineIntel"), "{}", refused.message);
        let unknown = judge(&target(), "beta", &has, Err("no answer".into())).unwrap();
        assert!(unknown.is_some_and(|warning| warning.contains("no answer")));
    }
}

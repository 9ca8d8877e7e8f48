//! The processor that a guest sees. What its programs found at the source must be there at the destination: they asked
//! once. QEMU leaves out what a host cannot do, without an error. With the CPU model `host` there is no list to compare
//! command lines by. So both QEMUs are asked what their virtual CPU has.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A virtual CPU, as QEMU answers for it. All of a guest's are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// CPUID's name of the maker: `GenuineIntel`.
    pub vendor: String,
    /// Bits of a physical address.
    pub address_bits: u32,
    /// Registers of CPUID that list features, those with none left out.
    pub words: Vec<FeatureWord>,
}

/// A register of CPUID in which each bit is a feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureWord {
    /// EAX of the question.
    pub leaf: u32,
    /// ECX of the question, for leaves that have several answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subleaf: Option<u32>,
    /// The answer's register: `EBX`.
    pub register: String,
    pub bits: u32,
}

impl Processor {
    /// From QEMU's properties of the first virtual CPU; none if it is not of the x86 family, or QEMU answers otherwise.
    pub(crate) fn of(vendor: &Value, address_bits: &Value, words: &Value) -> Option<Processor> {
        let words = words.as_array()?.iter().map(FeatureWord::of).collect::<Option<Vec<_>>>()?;
        Some(Processor {
            vendor: vendor.as_str()?.to_owned(),
            address_bits: u32::try_from(address_bits.as_u64()?).ok()?,
            words: words.into_iter().filter(|word| word.bits != 0).collect(),
        })
    }

    /// What a guest with this processor would miss with the other one, in words; empty if nothing. More features harm
    /// nothing that runs.
    pub fn lacking_in(&self, other: &Processor) -> Vec<String> {
        let mut lacking = Vec::new();
        if self.vendor != other.vendor {
            lacking.push(format!("the maker {} (there: {})", self.vendor, other.vendor));
        }
        if self.address_bits > other.address_bits {
            lacking.push(format!(
                "physical addresses of {} bits (there: {})",
                self.address_bits, other.address_bits
            ));
        }
        lacking.extend(self.words.iter().flat_map(|word| word.lacking_in(other)));
        lacking
    }
}

impl FeatureWord {
    fn of(answer: &Value) -> Option<FeatureWord> {
        let number = |key: &str| u32::try_from(answer.get(key)?.as_u64()?).ok();
        Some(FeatureWord {
            leaf: number("cpuid-input-eax")?,
            subleaf: number("cpuid-input-ecx"),
            register: answer.get("cpuid-register")?.as_str()?.to_owned(),
            bits: number("features")?,
        })
    }

    fn lacking_in(&self, other: &Processor) -> impl Iterator<Item = String> {
        let key = |word: &FeatureWord| (word.leaf, word.subleaf, word.register.clone());
        let there = other.words.iter().find(|word| key(word) == key(self)).map_or(0, |word| word.bits);
        let missing = self.bits & !there & !self.hints();
        (0..u32::BITS).filter(move |bit| missing & (1 << bit) != 0).map(|bit| self.name(bit))
    }

    /// Bits that say what is fast. A program that has read one does nothing that a processor without it cannot do.
    fn hints(&self) -> u32 {
        let place = (self.leaf, self.subleaf.unwrap_or(0), &*self.register);
        HINTS
            .iter()
            .filter(|(leaf, sub, register, _)| (*leaf, *sub, *register) == place)
            .map(|hint| hint.3)
            .sum()
    }

    /// The usual name of a feature, or its place in CPUID.
    fn name(&self, bit: u32) -> String {
        let subleaf = self.subleaf.unwrap_or(0);
        let known = NAMES.iter().find(|(leaf, sub, register, at, _)| {
            (*leaf, *sub, *register, *at) == (self.leaf, subleaf, &*self.register, bit)
        });
        match known {
            Some((.., name)) => (*name).to_owned(),
            None => format!("CPUID {:x}h.{subleaf} {} bit {bit}", self.leaf, self.register),
        }
    }
}

/// Leaf, subleaf, register and bits of such hints: erms; fsrm; fzrm, fsrs and fsrc (Intel SDM volume 2A, CPUID). QEMU
/// gives some of them to named models too, later versions more than earlier ones, whatever the machine's version is.
const HINTS: &[(u32, u32, &str, u32)] =
    &[(7, 0, "EBX", 1 << 9), (7, 0, "EDX", 1 << 4), (7, 1, "EAX", 1 << 10 | 1 << 11 | 1 << 12)];

const EXTENDED: u32 = 0x8000_0001;
/// KVM's own leaf of features.
const KVM: u32 = 0x4000_0001;

/// Leaf, subleaf, register, bit and name of features that hosts differ in (Intel SDM volume 2A, CPUID; AMD APM volume
/// 3, appendix E; Linux Documentation/virt/kvm/x86/cpuid.rst). Names as in /proc/cpuinfo.
const NAMES: &[(u32, u32, &str, u32, &str)] = &[
    (1, 0, "ECX", 0, "sse3"),
    (1, 0, "ECX", 1, "pclmulqdq"),
    (1, 0, "ECX", 5, "vmx"),
    (1, 0, "ECX", 9, "ssse3"),
    (1, 0, "ECX", 12, "fma"),
    (1, 0, "ECX", 13, "cx16"),
    (1, 0, "ECX", 17, "pcid"),
    (1, 0, "ECX", 19, "sse4_1"),
    (1, 0, "ECX", 20, "sse4_2"),
    (1, 0, "ECX", 21, "x2apic"),
    (1, 0, "ECX", 22, "movbe"),
    (1, 0, "ECX", 23, "popcnt"),
    (1, 0, "ECX", 24, "tsc_deadline_timer"),
    (1, 0, "ECX", 25, "aes"),
    (1, 0, "ECX", 26, "xsave"),
    (1, 0, "ECX", 28, "avx"),
    (1, 0, "ECX", 29, "f16c"),
    (1, 0, "ECX", 30, "rdrand"),
    (7, 0, "EBX", 0, "fsgsbase"),
    (7, 0, "EBX", 3, "bmi1"),
    (7, 0, "EBX", 4, "hle"),
    (7, 0, "EBX", 5, "avx2"),
    (7, 0, "EBX", 7, "smep"),
    (7, 0, "EBX", 8, "bmi2"),
    (7, 0, "EBX", 10, "invpcid"),
    (7, 0, "EBX", 11, "rtm"),
    (7, 0, "EBX", 16, "avx512f"),
    (7, 0, "EBX", 17, "avx512dq"),
    (7, 0, "EBX", 18, "rdseed"),
    (7, 0, "EBX", 19, "adx"),
    (7, 0, "EBX", 20, "smap"),
    (7, 0, "EBX", 21, "avx512ifma"),
    (7, 0, "EBX", 22, "pcommit"),
    (7, 0, "EBX", 23, "clflushopt"),
    (7, 0, "EBX", 24, "clwb"),
    (7, 0, "EBX", 28, "avx512cd"),
    (7, 0, "EBX", 29, "sha_ni"),
    (7, 0, "EBX", 30, "avx512bw"),
    (7, 0, "EBX", 31, "avx512vl"),
    (7, 0, "ECX", 1, "avx512vbmi"),
    (7, 0, "ECX", 2, "umip"),
    (7, 0, "ECX", 3, "pku"),
    (7, 0, "ECX", 6, "avx512_vbmi2"),
    (7, 0, "ECX", 8, "gfni"),
    (7, 0, "ECX", 9, "vaes"),
    (7, 0, "ECX", 10, "vpclmulqdq"),
    (7, 0, "ECX", 11, "avx512_vnni"),
    (7, 0, "ECX", 12, "avx512_bitalg"),
    (7, 0, "ECX", 14, "avx512_vpopcntdq"),
    (7, 0, "ECX", 16, "la57"),
    (7, 0, "ECX", 22, "rdpid"),
    (7, 0, "EDX", 10, "md_clear"),
    (7, 0, "EDX", 22, "amx_bf16"),
    (7, 0, "EDX", 24, "amx_tile"),
    (7, 0, "EDX", 25, "amx_int8"),
    (7, 0, "EDX", 26, "spec_ctrl"),
    (7, 0, "EDX", 29, "arch_capabilities"),
    (7, 0, "EDX", 31, "ssbd"),
    (0xd, 1, "EAX", 0, "xsaveopt"),
    (0xd, 1, "EAX", 1, "xsavec"),
    (0xd, 1, "EAX", 3, "xsaves"),
    (EXTENDED, 0, "ECX", 2, "svm"),
    (EXTENDED, 0, "ECX", 5, "abm"),
    (EXTENDED, 0, "ECX", 6, "sse4a"),
    (EXTENDED, 0, "ECX", 8, "3dnowprefetch"),
    (EXTENDED, 0, "ECX", 11, "xop"),
    (EXTENDED, 0, "ECX", 16, "fma4"),
    (EXTENDED, 0, "EDX", 20, "nx"),
    (EXTENDED, 0, "EDX", 26, "pdpe1gb"),
    (EXTENDED, 0, "EDX", 27, "rdtscp"),
    (EXTENDED, 0, "EDX", 29, "lm"),
    (KVM, 0, "EAX", 3, "kvm_clocksource2"),
    (KVM, 0, "EAX", 4, "kvm_async_pf"),
    (KVM, 0, "EAX", 5, "kvm_steal_time"),
    (KVM, 0, "EAX", 7, "kvm_pv_unhalt"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn processor(words: &Value) -> Processor {
        Processor::of(&json!("GenuineIntel"), &json!(40), words).unwrap()
    }

    fn leaf_7(bits: u32) -> Value {
        json!([
            { "cpuid-register": "EBX", "cpuid-input-ecx": 0, "cpuid-input-eax": 7, "features": bits },
            { "cpuid-register": "EDX", "cpuid-input-eax": 1, "features": 0x0783_fbfd },
        ])
    }

    #[test]
    fn every_feature_that_is_gone_is_named_and_one_that_is_new_is_not() {
        let (avx2, avx512) = (1 << 5, 1 << 16);
        let both = processor(&leaf_7(avx2 | avx512));
        assert_eq!(both.lacking_in(&processor(&leaf_7(avx2))), ["avx512f"]);
        assert_eq!(both.lacking_in(&processor(&json!([]))).len(), 2 + 0x0783_fbfd_u32.count_ones() as usize);
        assert_eq!(processor(&leaf_7(avx2)).lacking_in(&both), Vec::<String>::new());
        let unnamed = processor(&leaf_7(1 << 6));
        assert_eq!(unnamed.lacking_in(&processor(&leaf_7(0))), ["CPUID 7h.0 EBX bit 6"]);
    }

    #[test]
    fn what_is_only_faster_is_not_missed() {
        let (erms, avx2) = (1 << 9, 1 << 5);
        let fast = processor(&leaf_7(erms | avx2));
        assert_eq!(fast.lacking_in(&processor(&leaf_7(avx2))), Vec::<String>::new());
        assert_eq!(fast.lacking_in(&processor(&leaf_7(erms))), ["avx2"]);
    }

    #[test]
    fn another_maker_and_shorter_addresses_are_named() {
        let here = processor(&leaf_7(0));
        let there = Processor { vendor: "AuthenticAMD".into(), address_bits: 39, ..here.clone() };
        assert_eq!(
            here.lacking_in(&there),
            ["the maker GenuineIntel (there: AuthenticAMD)", "physical addresses of 40 bits (there: 39)"]
        );
        let longer = Processor { address_bits: 46, ..here.clone() };
        assert_eq!(here.lacking_in(&longer), Vec::<String>::new());
    }

    #[test]
    fn an_answer_of_another_family_is_none() {
        assert_eq!(Processor::of(&Value::Null, &json!(40), &leaf_7(0)), None);
        assert_eq!(Processor::of(&json!("x"), &json!(40), &json!([{ "cpuid-register": "EBX" }])), None);
    }
}

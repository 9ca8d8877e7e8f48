//! What this host's processor can, and what a guest that has all of it would miss at another host.

use std::collections::BTreeSet;

/// What the maker's name is written behind.
const MAKER: &str = "maker ";

/// Features that programs or kernels of guests use, and end without: instructions, and registers that a kernel writes
/// (Linux, arch/x86/include/asm/cpufeatures.h). Not those that concern the host alone, and not those that KVM gives on
/// every host (`x2apic`, `tsc_deadline_timer`, `umip`).
const OF_GUESTS: &[&str] = &[
    "3dnowprefetch",
    "abm",
    "adx",
    "aes",
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "arch_capabilities",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vp2intersect",
    "avx512_vpopcntdq",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512f",
    "avx512ifma",
    "avx512vbmi",
    "avx512vl",
    "avx_vnni",
    "bmi1",
    "bmi2",
    "clflushopt",
    "clwb",
    "clzero",
    "cx16",
    "f16c",
    "fma",
    "fma4",
    "fsgsbase",
    "gfni",
    "hle",
    "ibpb",
    "ibrs",
    "invpcid",
    "la57",
    "lahf_lm",
    "movbe",
    "movdir64b",
    "movdiri",
    "nx",
    "pcid",
    "pclmulqdq",
    "pdpe1gb",
    "pku",
    "pni",
    "popcnt",
    "rdpid",
    "rdrand",
    "rdseed",
    "rdtscp",
    "rtm",
    "serialize",
    "sha_ni",
    "smap",
    "smep",
    "sse4_1",
    "sse4_2",
    "sse4a",
    "ssbd",
    "ssse3",
    "stibp",
    "tbm",
    "vaes",
    "vpclmulqdq",
    "waitpkg",
    "xgetbv1",
    "xop",
    "xsave",
    "xsavec",
    "xsaveopt",
    "xsaves",
];

/// What this host's processor can, and its maker, as the kernel names it.
pub(crate) fn own_features() -> BTreeSet<String> {
    features(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn features(cpuinfo: &str) -> BTreeSet<String> {
    let value = |name: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let maker = value("vendor_id").map(|maker| format!("{MAKER}{maker}"));
    let flags = value("flags").unwrap_or_default();
    flags.split_whitespace().map(str::to_owned).chain(maker).collect()
}

/// What of these a guest uses that has all that its host's processor can.
pub(crate) fn of_guests(mut features: BTreeSet<String>) -> BTreeSet<String> {
    features.retain(|name| name.starts_with(MAKER) || OF_GUESTS.contains(&name.as_str()));
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_known_by_its_maker_and_its_flags() {
        let text =
            "processor\t: 0\nvendor_id\t: GenuineIntel\nvmx flags\t: ept\nflags\t\t: fpu avx2 x2apic\n";
        let found: Vec<String> = features(text).into_iter().collect();
        assert_eq!(found, ["avx2", "fpu", "maker GenuineIntel", "x2apic"]);
        assert!(features("").is_empty());
        let of_guests: Vec<String> = of_guests(features(text)).into_iter().collect();
        assert_eq!(of_guests, ["avx2", "maker GenuineIntel"]);
    }
}

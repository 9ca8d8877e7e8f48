//! How much memory the incoming QEMU's command line asks for. The description says it too, and both come from another
//! host: what is reserved is what is described, so the command line may not ask for more.

use super::Problem;
use crate::argv::{Argument, split_loose};
use crate::description::GuestDescription;
use crate::options::Options;
use crate::read::parsed;

const MIB: u64 = 1 << 20;

/// More memory on the command line than in the description.
pub(super) fn problem(guest: &GuestDescription, arguments: &[String]) -> Option<Problem> {
    let blocks = guest.ram.iter().map(|block| block.size).fold(0, u64::saturating_add);
    let described = guest.memory_bytes.max(blocks);
    match asked(arguments) {
        Ok(asked) if asked <= described => None,
        Ok(asked) => Some(Problem::MemoryDiffers { asked, described }),
        Err(unknown) => Some(unknown),
    }
}

/// Bytes, or the size that QEMU may understand otherwise.
fn asked(arguments: &[String]) -> Result<u64, Problem> {
    let options = split_loose(arguments);
    // All `-m` are one, in which the last size counts.
    let machine =
        parsed(&options, "m", Some("size")).filter_map(|memory| memory.get("size").map(str::to_owned));
    let machine = machine.last().map_or(Ok(0), |text| bytes(&text, MIB))?;
    let objects = parsed(&options, "object", Some("qom-type"))
        .filter(|object| object.get("qom-type").is_some_and(|kind| kind.starts_with("memory-backend-")))
        .try_fold(0_u64, |sum, object| {
            let size = object.get("size").map_or(Ok(0), |text| bytes(text, 1))?;
            Ok::<u64, Problem>(sum.saturating_add(size))
        })?;
    // An object that is the machine's memory has its size, else QEMU does not start.
    let apart = if is_of_objects(&options) { 0 } else { machine };
    Ok(objects.saturating_add(apart).max(machine))
}

fn is_of_objects(options: &[Argument]) -> bool {
    let has = |name: &str, key: &str| {
        let mut values = parsed(options, name, Some("type"));
        values.any(|value: Options| value.get(key).is_some_and(|value| !value.is_empty()))
    };
    has("machine", "memory-backend") || has("M", "memory-backend") || has("numa", "memdev")
}

/// A size as QEMU reads it: a number, with a fraction or in hexadecimal, and a unit.
fn bytes(text: &str, default_unit: u64) -> Result<u64, Problem> {
    read(text, default_unit).ok_or_else(|| Problem::MemoryUnknown { text: text.chars().take(40).collect() })
}

fn read(text: &str, default_unit: u64) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(digits, 16).ok()?.checked_mul(default_unit);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let unit = match unit.to_ascii_uppercase().as_str() {
        "" => default_unit,
        "B" => 1,
        "K" => 1 << 10,
        "M" => MIB,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        "E" => 1 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    // A smaller fraction is less than a byte of any unit that a guest has.
    let digits = fraction.get(..fraction.len().min(18))?;
    let scale = 10_u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let part = if digits.is_empty() { 0 } else { digits.parse::<u128>().ok()? * u128::from(unit) / scale };
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<u64, Problem> {
        asked(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        for (text, bytes) in [
            ("64", 64 * MIB),
            ("64M", 64 * MIB),
            ("size=65536k", 64 * MIB),
            ("size=67108864b", 64 * MIB),
            ("0x40", 64 * MIB),
            ("1.5G", 1536 * MIB),
            ("0.0625g", 64 * MIB),
            ("64,slots=4,maxmem=1T", 64 * MIB),
            ("slots=4,maxmem=1T", 0),
        ] {
            assert_eq!(of(&format!("-m {text}")), Ok(bytes), "{text}");
        }
        for text in ["", "x", "1.5.1G", "1e3", "-1", "64MiB", "99999999999E", "64M64"] {
            assert!(of(&format!("-m size={text}")).is_err(), "{text}");
        }
        assert_eq!(of("-m 1G -m slots=2,maxmem=2G -m 2G"), Ok(2048 * MIB));
        assert_eq!(of("-nodefaults -append -m"), Ok(0));
    }

    #[test]
    fn memory_of_objects_is_the_machines_or_comes_on_top() {
        let object = |id: &str, size: &str| format!("-object memory-backend-ram,id={id},size={size}");
        let (a, b) = (object("a", "64M"), object("b", "67108864"));
        assert_eq!(of(&format!("-m 64 -machine pc,memory-backend=a {a}")), Ok(64 * MIB));
        assert_eq!(of(&format!("-m 128 {a} {b} -numa node,memdev=a -numa node,memdev=b")), Ok(128 * MIB));
        assert_eq!(of(&format!("-m 64 {a} -device pc-dimm,memdev=a")), Ok(128 * MIB));
        assert_eq!(of(&format!("-m 512G -machine pc,memory-backend=a {a}")), Ok(512 << 30));
        let json = r#"-object {"qom-type":"memory-backend-memfd","id":"a","size":67108864}"#;
        assert_eq!(of(&format!("-M pc -m 64 {json}")), Ok(128 * MIB));
        assert!(of("-object memory-backend-file,id=a,size=1X").is_err());
        assert_eq!(of("-object iothread,id=a"), Ok(0));
    }
}

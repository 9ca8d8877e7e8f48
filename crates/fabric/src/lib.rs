//! The doctor: what hosts, ports, links and switches say of themselves, and what is wrong with it.
//!
//! * [`model`]: the inventory of a host, the matrix of probes, a finding, and the survey that holds them all.
//! * [`collect`]: how the inventory is read from the kernel.
//! * [`probe`]: bytes that are really moved between two hosts, and what agents ask each other for it.
//! * [`link`]: settings of a port are changed.
//! * [`fix`]: what `--fix` would do about findings.
//! * [`qos`]: priorities, shares and lossless traffic from one intent: on hosts, switches, Windows.
//! * [`saved`]: inventories in files.
//! * [`checks`]: one table of everything that can be wrong; pure functions of a survey.
//! * [`report`]: findings as text, JSON and a page.

pub mod checks;
pub mod collect;
pub mod fix;
pub mod link;
pub mod model;
pub mod probe;
pub mod qos;
pub mod report;
pub mod saved;
#[cfg(test)]
pub(crate) mod testing;

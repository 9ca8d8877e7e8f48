//! Pictures of things, as text. Everything here is pure: the same in, the same out.

pub mod audit;
pub mod bar;
pub mod bench;
pub mod bench_charts;
pub mod cluster;
pub mod doctor;
pub mod drain;
pub mod fix;
pub mod format;
pub mod frame;
pub mod lists;
pub mod paint;
pub mod qos;
pub mod report;
pub mod table;

#[cfg(test)]
mod bench_golden;
#[cfg(test)]
mod golden;
#[cfg(test)]
pub mod golden_data;

//! What several checks need: which ports migrations use, what differs between places, what a switch says.

mod differ;
mod equals;
mod mtu;
mod pairs;
mod ports;
mod qos;
mod rates;
mod rdma;
mod slots;
mod switch;
#[cfg(test)]
pub(crate) mod testing;

pub(super) use differ::{Value, differ, join, merged, odd};
pub(super) use equals::equals;
pub(super) use mtu::set_mtu;
pub(super) use pairs::{Pair, Way, by_shared_port, pairs, place};
pub(super) use ports::{carriers, migration_ports, migration_segments, outward, segments, speed, teams};
pub(super) use qos::{advise_intent, suggest_intent};
pub(super) use rates::{Slow, below_sibling, one_way, promise};
pub(super) use rdma::{
    RocePriority, has_infiniband, has_roce_v2, numbers, rdma_of, roce_of, roce_priority, traffic_class,
};
pub(super) use slots::{Slot, link_text, slots};
pub(super) use switch::switch_side;

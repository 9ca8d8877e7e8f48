//! Adapters of the same model.

use std::collections::BTreeMap;

use crate::model::{PortRef, Room};

/// Ports of the room by the model of their adapter, where there are at least two.
pub(in crate::checks) fn equals(room: &Room) -> BTreeMap<&str, Vec<PortRef<'_>>> {
    let mut models: BTreeMap<&str, Vec<PortRef<'_>>> = BTreeMap::new();
    for at in room.ports() {
        if let Some(id) = at.port.pcie.as_ref().and_then(|pcie| pcie.id.as_deref()) {
            models.entry(id).or_default().push(at);
        }
    }
    models.retain(|_, ports| ports.len() > 1);
    models
}

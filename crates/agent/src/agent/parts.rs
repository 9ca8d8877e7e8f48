//! Parts of the agent whose needs are many: they are made here, in the order in which they use each other.

use std::sync::Arc;

use crate::doctor::Doctor;
use crate::host_record::Describer;
use crate::libvirt::Moves;
use crate::security::Security;
use crate::stream_gate::StreamGates;
use crate::{bench, incoming, outgoing, tunnel};

/// Sessions of every kind.
pub(super) struct Sessions {
    pub outgoing: Arc<outgoing::Sessions>,
    pub incoming: Arc<incoming::Sessions>,
    pub tunnels: Arc<tunnel::Sessions>,
}

impl Sessions {
    /// `needs`: of those that arrive. The others need the same, and less.
    pub fn new(needs: incoming::Needs) -> Sessions {
        let gates = Arc::<StreamGates>::default();
        let outgoing = outgoing::Sessions::new(
            needs.config.clone(),
            needs.journal.clone(),
            needs.registry.clone(),
            gates.clone(),
            needs.recovery.clone(),
            needs.security.clone(),
            needs.audit.clone(),
        );
        let tunnels = tunnel::Sessions::new(
            needs.config.clone(),
            gates,
            needs.arrivals.clone(),
            needs.bench.rdma.clone(),
            needs.security.clone(),
        );
        let incoming = incoming::Sessions::new(needs);
        Sessions { outgoing: Arc::new(outgoing), incoming: Arc::new(incoming), tunnels: Arc::new(tunnels) }
    }
}

/// The doctor of the host that is described.
pub(super) fn doctor(
    describer: &Arc<Describer>,
    bench: &Arc<bench::Host>,
    security: &Arc<Security>,
    moves: &Arc<Moves>,
) -> Doctor {
    let (leaving, arriving, domains) =
        (describer.outgoing.clone(), describer.incoming.clone(), moves.clone());
    let asked = describer.clone();
    Doctor::new(
        describer.config.clone(),
        describer.qemu_cache.clone(),
        bench.clone(),
        security.clone(),
        move || asked.answer(),
        move || is_migrating(&leaving, &arriving, &domains),
    )
}

/// Guests are being moved from or to this host.
pub(super) fn is_migrating(
    outgoing: &outgoing::Sessions,
    incoming: &incoming::Sessions,
    moves: &Moves,
) -> bool {
    outgoing.all().iter().any(|one| !one.is_over())
        || !incoming.all().is_empty()
        || moves.all().iter().any(|one| !one.is_over())
}

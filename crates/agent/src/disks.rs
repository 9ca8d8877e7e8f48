//! The disks that a guest uses, at both ends of a migration: those of its command line when it begins. The same at the
//! destination before it is committed ([`linerate_guest::graph`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use linerate_core::{Code, Fault, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::graph::{self, DiskGraph, GraphError, Mapping};
use linerate_guest::qmp::Qmp;
use linerate_guest::read::Names;
use linerate_guest::stale;

use crate::faults::{chain, fault};

/// Reads the source's disks at the beginning. The command line follows drives that have another image now, which are
/// returned as sentences; all others must be as it has them.
pub(crate) fn at_start(
    qmp: &mut Qmp,
    guest: &mut GuestDescription,
    deadline: Instant,
) -> Result<Vec<String>, Fault> {
    let refused = |error: &(dyn std::error::Error + 'static)| {
        fault(Code::NotMigratable, Step::Resolve, Side::Source, error)
    };
    let graph =
        read_here(qmp, guest, deadline).map_err(|error| not_read(&error, Step::Resolve, Side::Source))?;
    let mut followed = Vec::new();
    if let Some((arguments, changes)) = graph.follow(&guest.arguments) {
        guest.arguments = arguments;
        followed = changes;
    }
    graph.check_named(&guest.arguments).map_err(|error| refused(&error))?;
    graph::check_files(&graph, guest.process.pid).map_err(|error| refused(&error))?;
    guest.graph = Some(graph);
    Ok(followed)
}

/// The source's disks, with whole names of their files.
fn read_here(qmp: &mut Qmp, guest: &GuestDescription, deadline: Instant) -> Result<DiskGraph, GraphError> {
    let mut graph = graph::read(qmp, deadline)?;
    Names::of(guest.process.pid, &guest.arguments).in_graph(&mut graph);
    Ok(graph)
}

/// What the guest loses by the migration: dirty bitmaps, and snapshots within images that are copied.
pub(crate) fn cautions(guest: &GuestDescription) -> Vec<String> {
    let Some(graph) = &guest.graph else { return Vec::new() };
    let caution = |lost: Vec<String>, text: &dyn Fn(String) -> String| {
        (!lost.is_empty()).then(|| text(lost.join(", ")))
    };
    let bitmaps = caution(graph.lost_bitmaps(&guest.copied), &|names| {
        format!("dirty bitmaps stay behind ({names}): the next backup that uses them must be a full one")
    });
    let snapshots = caution(graph.lost_snapshots(&guest.copied), &|names| {
        format!(
            "snapshots within copied images stay behind ({names}): they are in the image at the source only"
        )
    });
    bitmaps.into_iter().chain(snapshots).collect()
}

/// The source's disks at the beginning, as JSON. Empty for a domain of libvirt, whose disks are libvirt's.
pub(crate) fn initial_disks(guest: &GuestDescription) -> Result<String, Fault> {
    let Some(graph) = &guest.graph else { return Ok(String::new()) };
    graph.to_json().map_err(|error| fault(Code::NotMigratable, Step::Blackout, Side::Source, &error))
}

/// With the guest stopped, the source's disks must still be those of the beginning.
pub(crate) fn check_unchanged(
    qmp: &mut Qmp,
    guest: &GuestDescription,
    deadline: Instant,
) -> Result<(), Fault> {
    let Some(before) = &guest.graph else { return Ok(()) };
    let failed = |error: GraphError| not_read(&error, Step::Blackout, Side::Source);
    let now = read_here(qmp, guest, deadline).map_err(failed)?;
    graph::check_files(&now, guest.process.pid).map_err(failed)?;
    let Some(change) = before.change(&now) else { return Ok(()) };
    let detail = format!(
        "the guest's disks were changed during the migration: {change}. The destination has opened those of the beginning; \
         start the migration again when they are not being changed"
    );
    Err(Fault::new(Code::GuestDiffers, Step::Blackout, Side::Source, detail))
}

/// The same with what the source reports of its disks when its guest has stopped.
pub(crate) fn check_reported(
    qmp: &mut Qmp,
    guest: &GuestDescription,
    reported: &str,
    paths: &BTreeMap<String, String>,
    deadline: Instant,
) -> Result<(), Fault> {
    let source = DiskGraph::from_json(reported)
        .map_err(|error| fault(Code::ProtocolViolation, Step::Blackout, Side::Source, &error))?;
    check_same(qmp, guest, &source, paths, Step::Blackout, deadline)
}

/// Whether the destination's QEMU has the disks that the source's QEMU uses.
pub(crate) fn check_same(
    qmp: &mut Qmp,
    guest: &GuestDescription,
    source: &DiskGraph,
    paths: &BTreeMap<String, String>,
    step: Step,
    deadline: Instant,
) -> Result<(), Fault> {
    let here = graph::read(qmp, deadline).map_err(|error| not_read(&error, step, Side::Destination))?;
    let Some(difference) = source.difference(&here, Mapping { paths, copied: &guest.copied }) else {
        return Ok(());
    };
    let detail = format!(
        "the guest's disks at the source and those that QEMU has opened here are not the same: {difference}"
    );
    Err(Fault::new(Code::GuestDiffers, step, Side::Destination, detail))
}

/// Has the destination's QEMU limit the guest's I/O as the source's does. Limits may have been set since the guest's
/// start, and the command line does not have them.
pub(crate) fn set_limits(qmp: &mut Qmp, source: &DiskGraph, deadline: Instant) -> Result<(), Fault> {
    let (step, side) = (Step::Prepare, Side::Destination);
    let here = graph::read(qmp, deadline).map_err(|error| not_read(&error, step, side))?;
    for limits in source.limits_to_set(&here) {
        tracing::info!(%limits, "the I/O of a disk is limited as at the source");
        qmp.execute("block_set_io_throttle", limits, deadline)
            .map_err(|error| fault(Code::HypervisorFailed, step, side, &error))?;
    }
    Ok(())
}

fn not_read(error: &GraphError, step: Step, side: Side) -> Fault {
    let code = match error {
        GraphError::Qmp(_) => Code::HypervisorFailed,
        GraphError::Changing => Code::GuestDiffers,
        GraphError::TooMany(_) | GraphError::Replaced { .. } => Code::NotMigratable,
    };
    Fault::new(code, step, side, chain(error))
}

/// The guest runs elsewhere with copies of these disks: what is left here grows old.
pub(crate) fn mark_stale(copied: &[PathBuf], guest: &str, to: &str) {
    for path in copied {
        if let Err(error) = stale::mark(path, guest, to) {
            tracing::warn!(
                path = %path.display(), %error,
                "the image that is left here could not be marked as stale: no guest may be started with it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_guest::description::{CopiedDisk, ImageFormat};

    use super::*;
    use crate::incoming::domain::tests::waits;

    #[test]
    fn what_stays_behind_is_reported_before_the_guest_moves() {
        let text = r#"{"drives": [{"name": "d", "device": "vd", "node": 0}], "unused": [], "jobs": [], "nodes": [
            {"name": "n", "driver": "qcow2", "path": "/srv/d", "read_only": false, "size": 512, "children": [],
             "bitmaps": [{"name": "nightly", "persistent": true}]}]}"#;
        let mut graph = DiskGraph::from_json(text).unwrap();
        graph.nodes[0].snapshots = vec!["before".into(), "after".into()];
        let shared = GuestDescription { graph: Some(graph), ..waits() };
        assert_eq!(cautions(&shared), [""; 0]);
        let (id, path, format) = ("d".into(), "/srv/d".into(), ImageFormat::Qcow2);
        let disk = CopiedDisk { id, path, format, size: 512, identity: None };
        let texts = cautions(&GuestDescription { copied: vec![disk], ..shared });
        assert!(texts[0].contains("d: nightly") && texts[1].contains("(d: before, d: after)"), "{texts:?}");
    }
}

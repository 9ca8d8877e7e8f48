//! What systemd-networkd heard: a file for each port, of frames with their length in eight bytes before each.

use super::frame;
use crate::collect::root::Root;
use crate::model::{Neighbour, Port};

const FOLDER: &str = "run/systemd/netif/lldp";

/// Neighbours of these ports, with the port's name.
pub fn read(root: &Root, ports: &[Port]) -> Vec<(String, Neighbour)> {
    let of = |port: &Port| {
        let bytes = port.index.and_then(|index| root.bytes(format!("{FOLDER}/{index}"))).unwrap_or_default();
        frames(&bytes).into_iter().map(|neighbour| (port.name.clone(), neighbour)).collect::<Vec<_>>()
    };
    ports.iter().flat_map(of).collect()
}

fn frames(mut bytes: &[u8]) -> Vec<Neighbour> {
    let mut neighbours = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let Ok(length) = usize::try_from(u64::from_le_bytes(*length)) else { break };
        let Some((frame, behind)) = rest.split_at_checked(length) else { break };
        neighbours.extend(frame::read(frame).map(|said| said.neighbour));
        bytes = behind;
    }
    neighbours
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::lldp::frame::tests::switch_frame;

    #[test]
    fn two_frames_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(FOLDER);
        std::fs::create_dir_all(&place).unwrap();
        let mut bytes = Vec::new();
        for system in ["leaf1", "leaf2"] {
            let frame = switch_frame(system, 9234, 120);
            bytes.extend((frame.len() as u64).to_le_bytes());
            bytes.extend(frame);
        }
        bytes.extend(u64::MAX.to_le_bytes());
        std::fs::write(place.join("3"), bytes).unwrap();
        let ports = [Port { name: "ens1f0".into(), index: Some(3), ..Port::default() }];
        let systems: Vec<_> = read(&Root::at(folder.path()), &ports)
            .into_iter()
            .map(|(port, one)| (port, one.system))
            .collect();
        let expected = ["leaf1", "leaf2"].map(|system| ("ens1f0".to_owned(), Some(system.to_owned())));
        assert_eq!(systems, expected);
    }
}

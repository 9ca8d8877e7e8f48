//! The source's channels: what the core gives them is read from guest RAM and sent.

use linerate_core::scheduler::{Next, Work};
use linerate_core::{PAGE_BYTES, Side};

use crate::check::Mutation;
use crate::wire::{Packet, Purpose, Write};
use crate::world::World;

impl World {
    /// Every channel takes what the core gives it while its link is not busy far ahead.
    pub fn pump(&mut self) {
        let now = self.now;
        for id in self.open(Side::Source, Purpose::Channel) {
            loop {
                let Some(machine) = self.source.machine.as_mut() else { return };
                match machine.next_work(now, id) {
                    Next::Work(work) => self.carry(id, work),
                    Next::Ping { sequence } => self.send(id, Side::Source, Packet::Ping(sequence)),
                    Next::Wait | Next::Stop => break,
                }
            }
        }
    }

    fn carry(&mut self, id: u32, work: Work) {
        self.check_in_flight();
        let region = work.region as usize;
        let pages = work
            .runs
            .iter()
            .flat_map(|run| run.offset / PAGE_BYTES..run.end() / PAGE_BYTES)
            .map(|page| self.guest.ram[region][page as usize])
            .collect();
        let torn = self.guest.running && self.random.percent(self.scenario.torn);
        let write =
            Write { sequence: work.sequence, region, runs: work.runs, pages, read_at: self.now, torn };
        let first_page = region == 0 && write.runs.iter().any(|run| run.offset == 0);
        if self.options.mutation == Some(Mutation::WriteAfterSeal) && first_page {
            self.source.stray = Some((write.clone(), id));
        }
        let packet = Packet::Write(write);
        if let Some(machine) = self.source.machine.as_mut() {
            machine.work_sent(id, work.sequence, packet.bytes());
        }
        self.send(id, Side::Source, packet);
        self.carried_faults();
    }
}

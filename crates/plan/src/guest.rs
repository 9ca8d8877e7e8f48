//! A virtual guest: pages of RAM as version numbers, a process that holds them, and a tracker outside of it.
//!
//! A page is one number. A write gives it a number never used before. So two copies of RAM are the same only if every
//! page was copied after its last write.

use linerate_core::{Extent, PAGE_BYTES};

use crate::random::Random;

/// A page that has no memory behind it; it reads as zero.
pub const HOLE: u64 = u64::MAX;
/// What half a write leaves behind.
pub const TORN: u64 = u64::MAX - 1;
/// What loading device state writes into one page of RAM (an APIC page does that in QEMU).
pub const DEVICE: u64 = u64::MAX - 2;

/// What a hypervisor that starts leaves in a page of RAM.
pub const TOUCHED: u64 = u64::MAX - 3;

/// Most writes between two looks at a guest.
const WRITES_MAX: f64 = 3000.0;

/// Pages of each region.
pub type Ram = Vec<Vec<u64>>;
type Flags = Vec<Vec<bool>>;

/// RAM of this shape without any memory behind it.
pub fn holes(shape: &[usize]) -> Ram {
    shape.iter().map(|&pages| vec![HOLE; pages]).collect()
}

/// What reading the page gives.
pub fn content(page: u64) -> u64 {
    if page == HOLE { 0 } else { page }
}

/// Digest of what all pages read as (FNV-1a over the numbers).
pub fn digest(ram: &Ram) -> u64 {
    let fold = |hash: u64, page: &u64| (hash ^ content(*page)).wrapping_mul(0x0000_0100_0000_01b3);
    ram.iter().flatten().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// How far the hypervisor is with sending the guest away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// No migration was requested.
    No,
    /// Asked: it sets up while the guest runs.
    SettingUp,
    /// The guest is stopped, the hypervisor waits before device state.
    Holding,
    /// All device state is written.
    Completed,
}

/// How busy the guest is.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Pages written per millisecond.
    pub writes_per_ms: f64,
    /// Pages at the start of each region that are written over and over.
    pub working_set: usize,
    /// Of a thousand writes, how many go anywhere.
    pub stray_permille: u64,
    /// Of a thousand writes, how many give a page back instead (balloon).
    pub punch_permille: u64,
}

#[derive(Clone, Debug)]
pub struct Guest {
    pub ram: Ram,
    /// Its virtual CPUs run.
    pub running: bool,
    /// The process has ended.
    pub gone: bool,
    pub sending: Sending,
    /// Percent by which it is slowed down.
    pub throttle: u8,
    /// Written to by the tracker since the last scan are noted.
    pub protected: bool,
    /// Pages that ever had memory behind them.
    pub touched: Flags,
    written: Flags,
    /// Pages that the tracker ever named and that were no hole then.
    named: Flags,
    /// The guest ran until its hypervisor stopped it to send it away.
    pub ran: Option<bool>,
    /// Its process, unlike every other that ever was.
    pub pid: u64,
    /// The session that it was started for; 0 for none.
    pub made_for: u64,
    /// Index of its host.
    pub host: usize,
    /// All device state is loaded; so it is in a guest that was started here.
    pub loaded: bool,
    /// A piece of device state was not taken: it will never have all of it.
    pub broken: bool,
    /// It was taken over here, or never left.
    pub owned: bool,
    /// Its virtual CPUs have executed something in this process.
    pub executed: bool,
    /// It is complete, and no other copy has run since it was made.
    pub current: bool,
    /// Its disks are in use: it may write to them.
    pub disks: bool,
    /// Its hypervisor takes the locks of the disks as soon as all device state is loaded.
    pub locks_when_loaded: bool,
    /// The image that is on top of its disk.
    pub image: u64,
    /// An agent has set its hypervisor, which is libvirt's, to leave RAM out of its stream.
    pub leaves_ram_out: bool,
    /// Pages whose entry in the page table has become empty since they were written.
    emptied: Flags,
    habits: Workload,
    version: u64,
    debt: f64,
}

impl Guest {
    /// A guest that waits for another's RAM.
    pub fn waiting(shape: &[usize], habits: Workload, pid: u64, host: usize) -> Guest {
        let (loaded, owned, current, disks) = (false, false, false, false);
        Guest { pid, host, loaded, owned, current, disks, ..Guest::new(shape, habits, false, || false) }
    }

    /// A guest with the pages populated where `populated` says so.
    pub fn new(
        shape: &[usize],
        habits: Workload,
        running: bool,
        mut populated: impl FnMut() -> bool,
    ) -> Guest {
        let none: Flags = shape.iter().map(|&pages| vec![false; pages]).collect();
        let mut guest = Guest {
            ram: holes(shape),
            running,
            gone: false,
            sending: Sending::No,
            throttle: 0,
            protected: false,
            touched: none.clone(),
            written: none.clone(),
            named: none.clone(),
            leaves_ram_out: false,
            ran: None,
            pid: 1,
            made_for: 0,
            host: 0,
            loaded: true,
            broken: false,
            owned: true,
            executed: running,
            current: true,
            disks: true,
            locks_when_loaded: false,
            image: 0,
            emptied: none,
            habits,
            version: 0,
            debt: 0.0,
        };
        for (region, &pages) in shape.iter().enumerate() {
            (0..pages).filter(|_| populated()).for_each(|page| guest.write(region, page));
        }
        guest
    }

    /// The guest runs for this many milliseconds.
    pub fn live(&mut self, random: &mut Random, ms: f64) {
        if !self.running || self.gone {
            return;
        }
        self.debt += self.habits.writes_per_ms * ms * f64::from(100 - self.throttle) / 100.0;
        // What is written over and over while no scan runs need not be counted.
        self.debt = self.debt.min(WRITES_MAX);
        while self.debt >= 1.0 {
            self.debt -= 1.0;
            self.act(random);
        }
    }

    fn act(&mut self, random: &mut Random) {
        let region = random.below(self.ram.len() as u64) as usize;
        let all = self.ram[region].len();
        let stray = random.below(1000) < self.habits.stray_permille;
        let among = if stray { all } else { self.habits.working_set.min(all) };
        let page = random.below(among as u64) as usize;
        if random.below(1000) < self.habits.punch_permille {
            self.punch(region, page);
        } else {
            self.write(region, page);
        }
    }

    fn write(&mut self, region: usize, page: usize) {
        self.version += 1;
        // Now and then a page is written with zeros: it has memory behind it and reads as zero.
        self.ram[region][page] = if self.version.is_multiple_of(11) { 0 } else { self.version };
        self.touched[region][page] = true;
        self.written[region][page] = self.protected;
        self.emptied[region][page] = false;
        // Huge pages are split and collapsed, pages are swapped out: the entry goes, the page and its mark stay.
        if self.version.is_multiple_of(7) {
            let near = page.saturating_sub(1);
            self.emptied[region][near] = self.ram[region][near] != HOLE;
        }
    }

    /// The hypervisor itself writes to a page that has memory behind it, and perhaps to one that has none.
    pub fn hypervisor_writes(&mut self, random: &mut Random) {
        let region = random.below(self.ram.len() as u64) as usize;
        let page = random.below(self.ram[region].len() as u64) as usize;
        self.write(region, page);
    }

    /// What comes of a process that was sent here: it goes on with the RAM that it has.
    pub fn settles(&mut self, version: u64) {
        self.version = self.version.max(version);
        for (ram, touched) in self.ram.iter().zip(&mut self.touched) {
            ram.iter().zip(touched).for_each(|(&page, touched)| *touched |= page != HOLE);
        }
    }

    /// The number of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The mark that the page was written goes with its memory: no scan will name it.
    fn punch(&mut self, region: usize, page: usize) {
        self.ram[region][page] = HOLE;
        self.written[region][page] = false;
    }

    /// Write-protects everything; gives what is populated.
    pub fn protect(&mut self) -> Vec<Extent> {
        self.protected = true;
        self.written.iter_mut().for_each(|region| region.fill(false));
        self.named.iter_mut().for_each(|region| region.fill(false));
        let mut found = Vec::new();
        self.each_page(|guest, region, page| {
            if guest.ram[region][page] != HOLE {
                guest.named[region][page] = true;
                found.push(extent(region, page));
            }
        });
        found
    }

    /// Bytes written since the scan before.
    pub fn written_bytes(&self) -> u64 {
        self.written.iter().flatten().filter(|written| **written).count() as u64 * PAGE_BYTES
    }

    /// Gives what was written since the scan before and protects it again. `last`: also what became a hole.
    /// `forget` is asked for each written page whether the scan loses it (a broken tracker).
    /// `misses_emptied`: the tracker takes a page without an entry in the page table for one that was not written.
    pub fn scan(
        &mut self,
        last: bool,
        misses_emptied: bool,
        mut forget: impl FnMut() -> bool,
    ) -> Vec<Extent> {
        let mut found = Vec::new();
        self.each_page(|guest, region, page| {
            let hole = guest.ram[region][page] == HOLE;
            let missed = misses_emptied && guest.emptied[region][page];
            let written = std::mem::take(&mut guest.written[region][page]) && !missed;
            if (written && !forget()) || (last && hole && guest.named[region][page]) {
                guest.named[region][page] = !hole;
                found.push(extent(region, page));
            }
        });
        found
    }

    /// These are sent although no scan named them.
    pub fn name(&mut self, extents: &[Extent]) {
        for extent in extents {
            let pages = extent.run.offset / PAGE_BYTES..extent.run.end() / PAGE_BYTES;
            let region = self.named.get_mut(usize::from(extent.region));
            let pages = region.and_then(|region| region.get_mut(pages.start as usize..pages.end as usize));
            pages.into_iter().for_each(|pages| pages.fill(true));
        }
    }

    /// The tracker has ended, and with it all protection.
    pub fn unprotect(&mut self) {
        self.protected = false;
        self.written.iter_mut().for_each(|region| region.fill(false));
    }

    fn each_page(&mut self, mut visit: impl FnMut(&mut Guest, usize, usize)) {
        for region in 0..self.ram.len() {
            for page in 0..self.ram[region].len() {
                visit(self, region, page);
            }
        }
    }
}

fn extent(region: usize, page: usize) -> Extent {
    Extent::new(region as u16, page as u64 * PAGE_BYTES, PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Guest {
        let habits = Workload { writes_per_ms: 1.0, working_set: 4, stray_permille: 0, punch_permille: 0 };
        let mut odd = false;
        Guest::new(&[8], habits, true, || {
            odd = !odd;
            odd
        })
    }

    #[test]
    fn a_scan_names_what_was_written_and_only_once() {
        let mut guest = guest();
        assert_eq!(guest.protect().len(), 4);
        guest.write(0, 1);
        assert_eq!(guest.scan(false, false, || false), [extent(0, 1)]);
        assert!(guest.scan(false, false, || false).is_empty());
    }

    #[test]
    fn a_hole_is_named_by_the_last_scan_only() {
        let mut guest = guest();
        guest.protect();
        guest.write(0, 2);
        guest.punch(0, 2);
        assert!(guest.scan(false, false, || false).is_empty());
        assert_eq!(guest.scan(true, false, || false), [extent(0, 2)]);
    }

    #[test]
    fn a_throttled_guest_writes_less() {
        let count = |throttle| {
            let mut guest = guest();
            let before = guest.version;
            guest.throttle = throttle;
            guest.live(&mut Random::new(1), 100.0);
            guest.version - before
        };
        assert_eq!((count(0), count(80)), (100, 20));
    }
}

//! Hosts by what they offer and how much memory is free: the index of best fit.

use std::collections::BTreeSet;

use super::{HostId, Needs, Offer};

/// Hosts with the same offer, ordered by free memory. Only hosts that take arrivals are in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    offers: Vec<Offer>,
    needs: Vec<Needs>,
    /// For each offer: (free bytes, host).
    by_free: Vec<BTreeSet<(u64, HostId)>>,
    /// `fits[needs][offer]`.
    fits: Vec<Vec<bool>>,
    /// `linked[offer][offer]`: bytes per second that the links carry, 0 if there are none.
    linked: Vec<Vec<f64>>,
}

impl Index {
    /// The number of this offer; equal ones have one number.
    pub fn offer(&mut self, offer: Offer) -> usize {
        if let Some(known) = self.offers.iter().position(|known| *known == offer) {
            return known;
        }
        for (needs, row) in self.needs.iter().zip(&mut self.fits) {
            row.push(needs.obstacles(&offer).is_empty());
        }
        self.offers.push(offer);
        self.by_free.push(BTreeSet::new());
        let rate = |from: &Offer, to: &Offer| from.links_to(to).1;
        self.linked =
            self.offers.iter().map(|from| self.offers.iter().map(|to| rate(from, to)).collect()).collect();
        self.offers.len() - 1
    }

    /// The number of these needs; equal ones have one number.
    pub fn need(&mut self, needs: Needs) -> usize {
        if let Some(known) = self.needs.iter().position(|known| *known == needs) {
            return known;
        }
        self.fits.push(self.offers.iter().map(|offer| needs.obstacles(offer).is_empty()).collect());
        self.needs.push(needs);
        self.needs.len() - 1
    }

    pub fn offers(&self, number: usize) -> &Offer {
        &self.offers[number]
    }

    pub fn needs(&self, number: usize) -> &Needs {
        &self.needs[number]
    }

    pub fn insert(&mut self, offer: usize, free: u64, host: HostId) {
        self.by_free[offer].insert((free, host));
    }

    pub fn remove(&mut self, offer: usize, free: u64, host: HostId) {
        self.by_free[offer].remove(&(free, host));
    }

    /// Whether a guest with these needs can run on hosts with this offer, and its links lead there from `from`.
    pub fn suits(&self, needs: usize, from: usize, to: usize) -> bool {
        self.fits[needs][to] && self.linked[from][to] > 0.0
    }

    /// Bytes per second that the links between hosts with these offers carry.
    pub fn rate(&self, from: usize, to: usize) -> f64 {
        self.linked[from][to]
    }

    /// How many kinds of guests suit hosts with this offer.
    fn generality(&self, offer: usize) -> usize {
        self.fits.iter().filter(|row| row[offer]).count()
    }

    /// Hosts that suit all of `needs` and have at least `bytes` free. Those that suit the fewest other guests come
    /// first, and of those the fullest.
    pub fn tightest<'a>(
        &'a self,
        needs: &'a [usize],
        from: usize,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, HostId)> + 'a {
        let mut rows: Vec<_> = (0..self.offers.len())
            .filter(|&to| needs.iter().all(|&needs| self.suits(needs, from, to)))
            .map(|to| (self.generality(to), self.by_free[to].range((bytes, HostId(0))..).peekable()))
            .collect();
        std::iter::from_fn(move || {
            let first = rows.iter_mut().enumerate();
            let first =
                first.filter_map(|(n, (general, row))| row.peek().map(|&&at| (*general, at, n))).min()?;
            rows[first.2].1.next().copied()
        })
    }

    /// Hosts that suit all of `needs`, the emptiest first, as long as they have at least `bytes` free.
    pub fn emptiest<'a>(
        &'a self,
        needs: &'a [usize],
        from: usize,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, HostId)> + 'a {
        let mut rows: Vec<_> = (0..self.offers.len())
            .filter(|&to| needs.iter().all(|&needs| self.suits(needs, from, to)))
            .map(|to| self.by_free[to].range((bytes, HostId(0))..).rev().peekable())
            .collect();
        std::iter::from_fn(move || {
            let first =
                rows.iter_mut().enumerate().filter_map(|(n, row)| row.peek().map(|&&at| (at, n))).max()?;
            rows[first.1].next().copied()
        })
    }
}

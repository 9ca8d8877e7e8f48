//! The comparison's bar charts: a row for each case, a bar for each method.

use linerate_chart::{Bar, Bars, Row, Series};

use super::cases::Method;
use super::figures::Figures;
use super::targets::{Group, blackout, groups};

struct Chart {
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    figure: fn(&Figures) -> Option<f64>,
    /// A line to be reached, if there is one.
    mark: Option<f64>,
}

const CHARTS: [Chart; 3] = [
    Chart {
        file: "goodput",
        title: "Goodput, of what iperf3 gets over all links",
        unit: "%",
        figure: |run| run.wire_percent,
        mark: Some(100.0),
    },
    Chart {
        file: "blackout",
        title: "Blackout, as the mover reports it",
        unit: "ms",
        figure: blackout,
        mark: None,
    },
    Chart {
        file: "cpu",
        title: "CPU seconds per GB, both hosts together",
        unit: "s/GB",
        figure: |run| run.cpu_s_per_gb,
        mark: None,
    },
];

/// File names and contents.
pub fn draw(runs: &[Figures]) -> Vec<(String, String)> {
    let all = groups(runs);
    let mut versions: Vec<&str> = all.iter().map(|group| group.qemu).collect();
    versions.dedup();
    versions.sort_unstable();
    versions.dedup();
    let each = |version: &str| {
        let some: Vec<&Group<'_>> = all.iter().filter(|group| group.qemu == version).collect();
        CHARTS
            .iter()
            .map(|chart| (format!("{}-qemu{version}.svg", chart.file), chart.draw(&some, version)))
            .collect::<Vec<_>>()
    };
    versions.into_iter().flat_map(each).collect()
}

fn colour(method: Method) -> &'static str {
    // Distinct in lightness too, for readers who cannot distinguish colours.
    match method {
        Method::Linerate => "#0b6e4f",
        Method::LinerateTls => "#57a98a",
        Method::OneStream => "#b8c4ce",
        Method::Multifd => "#7f9bb3",
        Method::MultifdTls => "#9a86b8",
        Method::Mptcp => "#41617f",
    }
}

impl Chart {
    fn draw(&self, groups: &[&Group<'_>], version: &str) -> String {
        let ran = |method: &Method| groups.iter().any(|group| group.of(*method).next().is_some());
        let methods: Vec<Method> = Method::ALL.into_iter().filter(ran).collect();
        let series: Vec<Series> = methods
            .iter()
            .map(|method| Series { title: method.title().into(), colour: colour(*method) })
            .collect();
        let bar = |group: &Group<'_>, method| {
            let spread = group.spread(method, self.figure)?;
            Some(Bar { min: spread.min, median: spread.median, max: spread.max })
        };
        let row = |group: &&Group<'_>| Row {
            label: group.case.to_owned(),
            bars: methods.iter().map(|method| bar(group, *method)).collect(),
        };
        let chart = Bars {
            title: format!("{} (QEMU {version})", self.title),
            unit: self.unit,
            series: &series,
            rows: groups.iter().map(row).collect(),
            mark: self.mark,
            notes: Vec::new(),
        };
        chart.draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::targets::tests::run;

    #[test]
    fn three_charts_for_a_version() {
        let charts = draw(&[run("idle-2x2500", Method::Linerate, 1, 1.6), run("a<b", Method::Mptcp, 1, 2.0)]);
        assert_eq!(charts.len(), 3);
        let (name, svg) = &charts[0];
        assert_eq!(name, "goodput-qemu7.2.svg");
        assert!(svg.contains("100 %") && svg.contains("a&lt;b"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}

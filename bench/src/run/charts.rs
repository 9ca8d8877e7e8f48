//! Bar charts as SVG: a row for each case, a bar for each method, a thin line from the smallest to the largest run.

use super::cases::Method;
use super::figures::Figures;
use super::targets::{Group, blackout, groups};
use crate::statistics::Spread;

const LEFT: f64 = 190.0;
const WIDTH: f64 = 520.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;
const TOP: f64 = 62.0;

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
        title: "Blackout, by the mover's own word",
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
    // Distinct in lightness too, for those who do not tell colours apart.
    match method {
        Method::Linerate => "#0b6e4f",
        Method::OneStream => "#b8c4ce",
        Method::Multifd => "#7f9bb3",
        Method::Mptcp => "#41617f",
    }
}

impl Chart {
    fn draw(&self, groups: &[&Group<'_>], version: &str) -> String {
        let spreads =
            groups.iter().flat_map(|group| Method::ALL.map(|method| group.spread(method, self.figure)));
        let largest = spreads.flatten().map(|spread| spread.max).chain(self.mark).fold(0.0, f64::max);
        let scale = if largest > 0.0 { WIDTH / largest } else { 0.0 };
        let row = BAR * Method::ALL.len() as f64 + GAP;
        let (width, height) = (LEFT + WIDTH + RIGHT, TOP + row * groups.len() as f64 + 6.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{title}</title>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"8\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{title} (QEMU {version})</text>\n",
            title = self.title
        );
        svg.push_str(&legend());
        for (index, group) in groups.iter().enumerate() {
            let top = TOP + row * index as f64;
            svg.push_str(&text(LEFT - 8.0, top + row / 2.0 - 3.0, "end", group.case));
            for (number, method) in Method::ALL.into_iter().enumerate() {
                let spread = group.spread(method, self.figure);
                svg.push_str(&self.bar(top + BAR * number as f64, method, spread, scale));
            }
        }
        if let Some(mark) = self.mark {
            let x = LEFT + mark * scale;
            svg.push_str(&format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#333\" stroke-dasharray=\"4 3\"/>\n",
                height - 6.0
            ));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn bar(&self, top: f64, method: Method, spread: Option<Spread>, scale: f64) -> String {
        let Some(Spread { min, median, max, .. }) = spread else {
            return text(LEFT + 4.0, top + BAR - 4.0, "start", "–");
        };
        let (width, height, middle) = (median * scale, BAR - 2.0, top + BAR / 2.0 - 1.0);
        let digits = if median >= 20.0 { 0 } else { 1 };
        format!(
            "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" stroke=\"#d1495b\" stroke-width=\"1.5\"/>\n{}",
            colour(method),
            LEFT + min * scale,
            LEFT + max * scale,
            text(
                LEFT + max * scale + 5.0,
                top + BAR - 4.0,
                "start",
                &format!("{median:.digits$} {}", self.unit)
            )
        )
    }
}

fn legend() -> String {
    let entry = |(index, method): (usize, Method)| {
        let x = 8.0 + 190.0 * index as f64;
        format!(
            "<rect x=\"{x}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/>\n{}",
            colour(method),
            text(x + 17.0, 44.0, "start", method.title())
        )
    };
    Method::ALL.into_iter().enumerate().map(entry).collect()
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>\n")
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

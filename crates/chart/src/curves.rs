//! Curves over message sizes, which stand in powers of two.

use crate::scale::Scale;
use crate::{Series, foot, foot_height, head, text};

const LEFT: f64 = 64.0;
const WIDTH: f64 = 640.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 62.0;
const HEIGHT: f64 = 300.0;
const AXIS: f64 = 42.0;

/// A chart of curves, drawn as SVG; the horizontal axis is logarithmic.
#[derive(Clone, Debug)]
pub struct Curves<'a> {
    /// Text above the chart.
    pub title: String,
    /// Title of the vertical axis, with its unit.
    pub upwards: &'a str,
    /// Powers of ten upwards, instead of from 0 in equal steps.
    pub logarithmic: bool,
    /// The curves, drawn one over the other.
    pub curves: Vec<Curve>,
    /// A line to be reached, if there is one.
    pub mark: Option<f64>,
    /// Lines of text below the chart.
    pub notes: Vec<String>,
}

/// One curve: a series and its points.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name and colour, as the legend shows them.
    pub series: Series,
    /// Size of a message in bytes, and the figure. An empty message is drawn at one byte.
    pub points: Vec<(u32, f64)>,
}

impl Curves<'_> {
    /// The chart as a complete SVG document.
    pub fn draw(&self) -> String {
        let series: Vec<Series> = self.curves.iter().map(|curve| curve.series.clone()).collect();
        let bottom = TOP + HEIGHT;
        let (width, height) = (LEFT + WIDTH + RIGHT, bottom + AXIS + foot_height(&self.notes));
        let mut svg = head(width, height, &self.title, &series);
        let (across, upwards) = (self.across(), self.scale());
        svg.push_str(&self.grid(&across, &upwards));
        for curve in &self.curves {
            svg.push_str(&draw_curve(curve, &across, &upwards));
        }
        svg.push_str(&foot(bottom + AXIS - 4.0, &self.notes));
        svg.push_str("</svg>\n");
        svg
    }

    fn sizes(&self) -> impl Iterator<Item = u32> + '_ {
        self.curves.iter().flat_map(|curve| curve.points.iter().map(|(size, _)| (*size).max(1)))
    }

    fn across(&self) -> Scale {
        let (low, high) = (self.sizes().min().unwrap_or(1), self.sizes().max().unwrap_or(2));
        Scale::logarithmic(f64::from(low), f64::from(high), LEFT, LEFT + WIDTH)
    }

    fn scale(&self) -> Scale {
        let figures = || self.curves.iter().flat_map(|curve| curve.points.iter().map(|(_, figure)| *figure));
        let high = figures().chain(self.mark).fold(0.0, f64::max);
        let bottom = TOP + HEIGHT;
        if self.logarithmic {
            let low = figures().filter(|figure| *figure > 0.0).fold(f64::INFINITY, f64::min);
            Scale::logarithmic(if low.is_finite() { low } else { 1.0 }, high, bottom, TOP)
        } else {
            Scale::linear(high, bottom, TOP)
        }
    }

    fn grid(&self, across: &Scale, upwards: &Scale) -> String {
        let (right, bottom) = (LEFT + WIDTH, TOP + HEIGHT);
        let mut svg = String::new();
        for mark in upwards.marks() {
            let y = upwards.place(mark);
            svg.push_str(&format!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\n{}",
                text(LEFT - 6.0, y + 4.0, "end", &round(mark))
            ));
        }
        let (low, high) = (self.sizes().min().unwrap_or(1), self.sizes().max().unwrap_or(1));
        for size in (0..32).step_by(2).map(|power| 1u32 << power).filter(|size| (low..=high).contains(size)) {
            let x = across.place(f64::from(size));
            svg.push_str(&format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#eeeeee\"/>\n{}",
                text(x, bottom + 16.0, "middle", &size_text(size))
            ));
        }
        if let Some(mark) = self.mark {
            let y = upwards.place(mark);
            svg.push_str(&format!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#333\" stroke-dasharray=\"4 3\"/>\n"
            ));
        }
        svg.push_str(&format!(
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#888888\"/>\n"
        ));
        svg.push_str(&text(LEFT, TOP - 5.0, "start", self.upwards));
        svg.push_str(&text(right, bottom + 31.0, "end", "bytes of a message"));
        svg
    }
}

fn draw_curve(curve: &Curve, across: &Scale, upwards: &Scale) -> String {
    let place =
        |(size, figure): &(u32, f64)| (across.place(f64::from((*size).max(1))), upwards.place(*figure));
    let places: Vec<(f64, f64)> = curve.points.iter().map(place).collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let colour = curve.series.colour;
    let dot =
        |(x, y): &(f64, f64)| format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>\n");
    let dots: String = places.iter().map(dot).collect();
    format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n{dots}",
        path.join(" ")
    )
}

/// As short as it is exact.
fn round(figure: f64) -> String {
    let text = format!("{figure:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn size_text(size: u32) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..1_048_576 => format!("{}K", size >> 10),
        _ => format!("{}M", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(points: Vec<(u32, f64)>) -> Curves<'static> {
        Curves {
            title: "T".into(),
            upwards: "µs",
            logarithmic: true,
            curves: vec![Curve { series: Series::numbered(0, "eth1"), points }],
            mark: None,
            notes: vec!["MTU 9000".into()],
        }
    }

    #[test]
    fn a_curve_goes_through_its_points() {
        let svg = curves(vec![(0, 10.0), (1, 10.0), (1 << 20, 1000.0)]).draw();
        for words in
            ["points=\"64.0,362.0 64.0,362.0 704.0,62.0\"", ">1K<", ">1M<", ">100<", ">MTU 9000<", "eth1"]
        {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn nothing_measured_is_an_empty_chart_and_no_nonsense() {
        for chart in
            [curves(vec![]), Curves { logarithmic: false, mark: Some(10.0), ..curves(vec![(4, 0.0)]) }]
        {
            let svg = chart.draw();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 0.5, 1000.0, 2.25].map(round), ["0", "0.5", "1000", "2.25"]);
    }
}

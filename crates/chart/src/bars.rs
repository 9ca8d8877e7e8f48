//! Bar charts: a row for each case, a bar for each series, a thin line from the smallest to the largest run.

use crate::{Series, foot, foot_height, head, text};

const LEFT: f64 = 190.0;
const WIDTH: f64 = 520.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;
const TOP: f64 = 62.0;

/// A chart of horizontal bars, drawn as SVG.
#[derive(Clone, Debug)]
pub struct Bars<'a> {
    /// Text above the chart.
    pub title: String,
    /// Unit behind each figure.
    pub unit: &'a str,
    /// What the bars of a row stand for.
    pub series: &'a [Series],
    /// Rows from top to bottom.
    pub rows: Vec<Row>,
    /// A line to be reached, if there is one.
    pub mark: Option<f64>,
    /// Lines of text below the chart.
    pub notes: Vec<String>,
}

/// Bars of one case.
#[derive(Clone, Debug)]
pub struct Row {
    /// Text at the left of the row's bars.
    pub label: String,
    /// One for each series; none where nothing was measured.
    pub bars: Vec<Option<Bar>>,
}

/// One figure, or several with their spread.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Smallest figure: the left end of the line that shows the spread.
    pub min: f64,
    /// What the bar shows.
    pub median: f64,
    /// Largest figure: the right end of the line that shows the spread.
    pub max: f64,
}

impl Bar {
    /// A figure without spread.
    pub fn one(figure: f64) -> Bar {
        Bar { min: figure, median: figure, max: figure }
    }
}

impl Bars<'_> {
    /// The chart as a complete SVG document.
    pub fn draw(&self) -> String {
        let bars = self.rows.iter().flat_map(|row| row.bars.iter().flatten());
        let largest = bars.map(|bar| bar.max).chain(self.mark).fold(0.0, f64::max);
        let scale = if largest > 0.0 { WIDTH / largest } else { 0.0 };
        let row = BAR * self.series.len() as f64 + GAP;
        let end = TOP + row * self.rows.len() as f64;
        let (width, height) = (LEFT + WIDTH + RIGHT, end + 6.0 + foot_height(&self.notes));
        let mut svg = head(width, height, &self.title, self.series);
        for (index, one) in self.rows.iter().enumerate() {
            let top = TOP + row * index as f64;
            svg.push_str(&text(LEFT - 8.0, top + row / 2.0 - 3.0, "end", &one.label));
            for (number, (series, bar)) in self.series.iter().zip(&one.bars).enumerate() {
                svg.push_str(&self.bar(top + BAR * number as f64, series, *bar, scale));
            }
        }
        if let Some(mark) = self.mark {
            let x = LEFT + mark * scale;
            svg.push_str(&format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{end:.1}\" stroke=\"#333\" stroke-dasharray=\"4 3\"/>\n"
            ));
        }
        svg.push_str(&foot(end, &self.notes));
        svg.push_str("</svg>\n");
        svg
    }

    fn bar(&self, top: f64, series: &Series, bar: Option<Bar>, scale: f64) -> String {
        let Some(Bar { min, median, max }) = bar else {
            return text(LEFT + 4.0, top + BAR - 4.0, "start", "–");
        };
        let (width, height, middle) = (median * scale, BAR - 2.0, top + BAR / 2.0 - 1.0);
        let digits = if median >= 20.0 { 0 } else { 1 };
        let spread = format!(
            "<line x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" stroke=\"#d1495b\" stroke-width=\"1.5\"/>\n",
            LEFT + min * scale,
            LEFT + max * scale,
        );
        format!(
            "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>\n{}{}",
            series.colour,
            if max > min { spread } else { String::new() },
            text(
                LEFT + max * scale + 5.0,
                top + BAR - 4.0,
                "start",
                &format!("{median:.digits$} {}", self.unit)
            )
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_rows_figures_mark_and_notes() {
        let series = [Series::numbered(0, "one"), Series::numbered(1, "two")];
        let bars = vec![Some(Bar { min: 1.0, median: 2.0, max: 4.0 }), None];
        let rows = vec![Row { label: "a<b".into(), bars }];
        let chart = Bars {
            title: "T".into(),
            unit: "ms",
            series: &series,
            rows,
            mark: Some(8.0),
            notes: vec!["MTU".into()],
        };
        let svg = chart.draw();
        for words in ["a&lt;b", "2.0 ms", ">–<", "stroke-dasharray", ">MTU<", ">two<", "width=\"130.0\""] {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(!Bars { rows: vec![], mark: None, ..chart }.draw().contains("NaN"));
    }
}

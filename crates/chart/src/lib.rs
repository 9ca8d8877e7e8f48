//! Charts of measurements as SVG, for `linerate bench` and for the benchmarks: [`Bars`] and [`Curves`].
//!
//! Text in, text out. Colours differ in lightness too, for readers who cannot distinguish them.

mod bars;
mod curves;
mod scale;

pub use bars::{Bar, Bars, Row};
pub use curves::{Curve, Curves};

/// Colours for series of which none is special, darkest first.
pub const COLOURS: [&str; 6] = ["#0b6e4f", "#d1495b", "#41617f", "#e0a030", "#7f9bb3", "#6a4c93"];

/// What a colour means.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name that the legend shows.
    pub title: String,
    /// As SVG names it.
    pub colour: &'static str,
}

impl Series {
    /// The `number`th of series of which none is special.
    pub fn numbered(number: usize, title: impl Into<String>) -> Series {
        let colour = COLOURS.iter().cycle().nth(number % COLOURS.len()).copied().unwrap_or("#000000");
        Series { title: title.into(), colour }
    }
}

/// The beginning of a picture: background, title, legend.
fn head(width: f64, height: f64, title: &str, series: &[Series]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n",
        title = escape(title)
    );
    let each = if series.is_empty() { 0.0 } else { (width - 10.0) / series.len() as f64 };
    for (index, series) in series.iter().enumerate() {
        let x = 8.0 + each.min(190.0) * index as f64;
        svg.push_str(&format!(
            "<rect x=\"{x}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/>\n{}",
            series.colour,
            text(x + 17.0, 44.0, "start", &series.title)
        ));
    }
    svg
}

/// Lines below a picture.
fn foot(top: f64, notes: &[String]) -> String {
    let line = |(index, note): (usize, &String)| text(8.0, top + 14.0 + 15.0 * index as f64, "start", note);
    notes.iter().enumerate().map(line).collect()
}

/// Height of the notes.
fn foot_height(notes: &[String]) -> f64 {
    if notes.is_empty() { 0.0 } else { 10.0 + 15.0 * notes.len() as f64 }
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escape(words))
}

/// Words from elsewhere cannot become markup.
fn escape(words: &str) -> String {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    words.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_become_markup() {
        let svg = head(100.0, 100.0, "a<b>&\"\u{1}", &[Series::numbered(7, "<x")]);
        assert!(
            svg.contains("a&lt;b&gt;&amp;&quot; ") && svg.contains("&lt;x") && svg.contains(COLOURS[1]),
            "{svg}"
        );
    }
}

//! The page as HTML: the parts of a report, with their style and script.

use std::fmt::Write;

use super::matrix;
use super::report::{Example, RunReport};
use super::text::{base64, escaped, put};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

impl RunReport {
    /// The page as HTML.
    pub fn html(&self) -> String {
        html(self)
    }
}

fn html(report: &RunReport) -> String {
    let title = escaped(&report.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header><div><h1>{title}</h1>"
    );
    if !report.subtitle.is_empty() {
        put!(out, "<p>{}</p>", escaped(&report.subtitle));
    }
    out.push_str(
        "</div><button id=\"theme\" type=\"button\" aria-label=\"Light or dark\" title=\"Light or dark\">\
         <svg viewBox=\"0 0 20 20\" aria-hidden=\"true\"><circle cx=\"10\" cy=\"10\" r=\"7\"/>\
         <path d=\"M10 3a7 7 0 0 1 0 14z\"/></svg></button></header>\n<main>\n",
    );
    if !report.facts.is_empty() {
        out.push_str("<dl class=\"facts\">");
        for (name, value) in &report.facts {
            put!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
        }
        out.push_str("</dl>\n");
    }
    if !report.charts.is_empty() {
        out.push_str("<section><h2>Curves</h2><div class=\"charts\">");
        report.charts.iter().for_each(|chart| out.push_str(&chart.html()));
        out.push_str("</div></section>\n");
    }
    if let Some(confusion) = &report.confusion {
        put!(out, "<section><h2>Confusion matrix</h2>{}</section>\n", matrix::html(confusion, &report.classes));
    }
    for group in &report.examples {
        put!(out, "<section><h2>{}</h2>", escaped(&group.title));
        match group.all.is_empty() {
            true => out.push_str("<p class=\"card empty\">There are none.</p>"),
            false => {
                let kind = if group.all.iter().any(|e| e.png.is_some()) { "pictures" } else { "texts" };
                put!(out, "<div class=\"examples {kind}\">");
                group.all.iter().for_each(|e| example(&mut out, e));
                out.push_str("</div>");
            }
        }
        out.push_str("</section>\n");
    }
    if !report.config.is_empty() {
        out.push_str("<section><h2>Configuration</h2><div class=\"card\"><table class=\"rows config\"><tbody>");
        for (name, value) in &report.config {
            put!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escaped(name), escaped(value));
        }
        out.push_str("</tbody></table></div></section>\n");
    }
    let version = env!("CARGO_PKG_VERSION");
    put!(out, "</main>\n<footer>Made by Gradus {version}</footer>\n<div id=\"tip\" hidden></div>\n");
    put!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn example(out: &mut String, example: &Example) {
    let kind = match example.is_right {
        Some(true) => " right",
        Some(false) => " wrong",
        None => "",
    };
    put!(out, "<figure class=\"card{kind}\">");
    if let Some(png) = &example.png {
        let alt = escaped(&example.caption);
        put!(out, "<img alt=\"{alt}\" src=\"data:image/png;base64,{}\">", base64(png));
    }
    if !example.text.is_empty() {
        put!(out, "<blockquote>{}</blockquote>", escaped(&example.text));
    }
    put!(out, "<figcaption>{}", escaped(&example.caption));
    if !example.note.is_empty() {
        put!(out, "<small>{}</small>", escaped(&example.note));
    }
    out.push_str("</figcaption></figure>");
}

#[cfg(test)]
mod tests {
    use crate::{ConfusionMatrix, Curve, EpochReport, Example, Examples, Run, RunReport};

    #[test]
    fn nothing_is_fetched_and_nothing_of_the_user_is_read_as_html() {
        let evil = "</script><script>alert(1)</script><img src=x onerror=\"a\">";
        let epoch = EpochReport {
            epoch: 1,
            steps: 1,
            samples: 1,
            loss: f64::NAN,
            accuracy: Some(0.5),
            lr_factor: 1.0,
            seconds: 0.0,
            validation: None,
        };
        let mut report = RunReport::of(evil, &Run { epochs: vec![epoch], ..Run::default() });
        report.subtitle = evil.into();
        report.facts.push((evil.into(), evil.into()));
        report.config.push((evil.into(), evil.into()));
        report.confusion = Some(ConfusionMatrix::new(2).unwrap());
        report.classes = vec![evil.into()];
        report.charts[0].title = evil.into();
        report.charts[0].curves[0] = Curve { name: evil.into(), points: vec![(1, 2.0)], is_faint: true };
        let example = Example { text: evil.into(), caption: evil.into(), note: evil.into(), ..Example::default() };
        report.examples.push(Examples { title: evil.into(), all: vec![example] });
        report.add_steps(&crate::History::default());
        let html = report.html();
        assert_eq!((html.matches("<script>").count(), html.matches("<img").count()), (1, 0));
        // A browser must be able to open the page from a disk, without a network.
        assert!(!html.contains("http:") && !html.contains("https:") && !html.contains("url("), "something is fetched");
        assert_eq!(html.matches("<figure").count(), html.matches("</figure>").count());
        assert_eq!(html.matches("<section").count(), html.matches("</section>").count());
    }

    #[test]
    fn a_task_that_counts_no_correct_answers_has_no_curve_of_them() {
        let epoch = |accuracy| EpochReport {
            epoch: 1,
            steps: 1,
            samples: 1,
            loss: 1.0,
            accuracy,
            lr_factor: 1.0,
            seconds: 1.0,
            validation: None,
        };
        let page = |epochs: Vec<EpochReport>| RunReport::of("t", &Run { epochs, ..Run::default() }).html();
        assert!(page(vec![epoch(Some(0.5))]).contains("<h3>Accuracy</h3>"));
        let without = page(vec![epoch(None)]);
        assert!(without.contains("<h3>Loss</h3>") && !without.contains("Accuracy"));
    }

    #[test]
    fn matrices_of_many_classes_list_the_mistakes() {
        let mut matrix = ConfusionMatrix::new(1000).unwrap();
        for (truth, predicted) in [(7, 7), (7, 999), (7, 999), (3, 4)] {
            matrix.add(truth, predicted).unwrap();
        }
        let mut report = RunReport { confusion: Some(matrix), ..RunReport::default() };
        let html = report.html();
        assert!(html.contains("<tr><td>7</td><td>999</td><td>2</td><td>66.67\u{202f}%</td></tr>"), "{html}");
        report.confusion = Some(ConfusionMatrix::new(1000).unwrap());
        assert!(report.html().contains("Every prediction is right"));
    }
}

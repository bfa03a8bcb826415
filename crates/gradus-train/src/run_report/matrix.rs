//! The confusion matrix as a table in colours.

use std::fmt::Write;

use super::text::{escaped, put, short};
use crate::ConfusionMatrix;

/// The largest number of classes for which the table has a cell for each pair. If there are more, the most frequent
/// mistakes are listed instead.
const MOST_CELLS: usize = 32;

/// The largest number of mistakes in the list.
const MOST_MISTAKES: usize = 20;

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "\u{2013}".into(), |share| format!("{:.1}\u{202f}%", share * 100.0))
}

/// The matrix as part of a page. Classes without a name are shown by number.
pub(super) fn html(matrix: &ConfusionMatrix, names: &[String]) -> String {
    let classes = matrix.classes();
    let name = |class: usize| names.get(class).map_or_else(|| class.to_string(), |name| escaped(name));
    if classes > MOST_CELLS {
        return mistakes(matrix, &name);
    }
    let mut out = String::from(
        "<div class=\"card matrix\"><table><caption>Rows are true classes, columns are predictions. The colour is the \
         share of the row.</caption><thead><tr><th></th>",
    );
    (0..classes).for_each(|class| put!(out, "<th scope=\"col\">{}</th>", name(class)));
    put!(out, "<th scope=\"col\" class=\"share\">recall</th></tr></thead><tbody>");
    for truth in 0..classes {
        let total: u64 = (0..classes).map(|predicted| matrix.count(truth, predicted)).sum();
        put!(out, "<tr><th scope=\"row\">{}</th>", name(truth));
        for predicted in 0..classes {
            let count = matrix.count(truth, predicted);
            let share = count as f64 / total.max(1) as f64;
            let kind = if truth == predicted { "right" } else { "wrong" };
            // The colour grows like the square root of the share, so that rare mistakes are visible too.
            let strength = if count == 0 { 0.0 } else { 12.0 + 80.0 * share.sqrt() };
            let light = if strength > 60.0 { " strong" } else { "" };
            let title = format!("{count} of {total}: {} as {}", name(truth), name(predicted));
            match count {
                0 => put!(out, "<td class=\"none\" title=\"{title}\">\u{b7}</td>"),
                _ => {
                    put!(out, "<td class=\"{kind}{light}\" style=\"--s:{strength:.0}%\" title=\"{title}\">{count}</td>")
                }
            }
        }
        put!(out, "<td class=\"share\">{}</td></tr>", percent(matrix.recall(truth)));
    }
    put!(out, "</tbody><tfoot><tr><th scope=\"row\">precision</th>");
    (0..classes).for_each(|class| put!(out, "<td class=\"share\">{}</td>", percent(matrix.precision(class))));
    put!(out, "<td class=\"share\"><b>{}</b></td></tr></tfoot></table></div>", percent(matrix.accuracy()));
    out
}

fn mistakes(matrix: &ConfusionMatrix, name: &dyn Fn(usize) -> String) -> String {
    let mut pairs: Vec<_> = matrix.pairs().filter(|((truth, predicted), _)| truth != predicted).collect();
    pairs.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    pairs.truncate(MOST_MISTAKES);
    if pairs.is_empty() {
        return "<p class=\"card empty\">Every prediction is right.</p>".into();
    }
    let mut out = String::from(
        "<div class=\"card\"><table class=\"rows\"><caption>The most frequent mistakes</caption><thead><tr><th>true class</th>\
         <th>predicted as</th><th>samples</th><th>share of the class</th></tr></thead><tbody>",
    );
    for ((truth, predicted), count) in pairs {
        let total: u64 = matrix.pairs().filter(|((of, _), _)| *of == truth).map(|(_, count)| count).sum();
        let share = count as f64 / total.max(1) as f64 * 100.0;
        let (truth, predicted) = (name(truth), name(predicted));
        put!(out, "<tr><td>{truth}</td><td>{predicted}</td><td>{count}</td><td>{}\u{202f}%</td></tr>", short(share));
    }
    out + "</tbody></table></div>"
}

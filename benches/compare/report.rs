//! What is printed: the table of lanes, the ratios, the figures.

use crate::rounds::{Lane, quantile};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Goal {
    fn verdict(self, value: f64) -> String {
        let (text, met) = match self {
            Self::AtLeast(goal) => (format!("goal >= {goal}"), value >= goal),
            Self::AtMost(goal) => (format!("goal <= {goal}"), value <= goal),
            Self::None => return String::new(),
        };
        format!("{text}: {}", if met { "met" } else { "MISSED" })
    }
}

/// Everything that was measured, in order.
#[derive(Debug, Default)]
pub(crate) struct Report {
    ratios: Vec<Ratio>,
    figures: Vec<(String, f64, &'static str, Goal)>,
}

#[derive(Debug)]
struct Ratio {
    name: &'static str,
    ours: f64,
    theirs: f64,
    goal: Goal,
}

impl Report {
    pub(crate) fn ratio(&mut self, name: &'static str, ours: f64, theirs: f64, goal: Goal) {
        self.ratios.push(Ratio { name, ours, theirs, goal });
    }

    pub(crate) fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str, goal: Goal) {
        self.figures.push((name.into(), value, unit, goal));
    }

    pub(crate) fn print(&self) {
        println!("\ngoals");
        for Ratio { name, ours, theirs, goal } in &self.ratios {
            println!("  {name:<40} {:>9.3}  {}", ours / theirs, goal.verdict(ours / theirs));
        }
        for (name, value, _, goal) in &self.figures {
            if !matches!(goal, Goal::None) {
                println!("  {name:<40} {value:>9.3}  {}", goal.verdict(*value));
            }
        }
        println!();
        for Ratio { name, ours, theirs, .. } in &self.ratios {
            println!("ratio {name} {:.3} ({ours:.3} / {theirs:.3})", ours / theirs);
        }
        for (name, value, unit, _) in &self.figures {
            println!("figure {name} {value:.3} {unit}");
        }
    }
}

/// A heading, and the figure to be printed below it.
type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> f64);

/// One line per lane: the median over the rounds, and how far the rounds are apart.
pub(crate) fn table<T>(title: &str, lanes: &[Lane<'_, T>], columns: &[Column<'_, T>]) {
    println!("\n{title}: median of {} rounds (lowest to highest)", lanes[0].samples.len());
    for lane in lanes {
        print!("  {:<14}", lane.name);
        for (name, value) in columns {
            let values: Vec<f64> = lane.samples.iter().map(value).collect();
            let low = quantile(values.clone(), 0.0);
            let high = quantile(values.clone(), 1.0);
            print!("  {name} {:>8} ({} to {})", short(quantile(values, 0.5)), short(low), short(high));
        }
        println!();
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

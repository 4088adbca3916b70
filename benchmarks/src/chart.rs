//! Charts of figures that `run --json` printed: bars for stores, and lines where something is
//! varied. The whiskers go from the least to the most of several runs.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};
use plotters::{
    coord::Shift,
    coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    prelude::{
        BLACK, ChartBuilder, Circle, Color as _, DrawingArea, IntoDrawingArea as _, IntoFont as _,
        IntoLogRange as _, LineSeries, PathElement, RGBColor, Rectangle, SVGBackend,
        SeriesLabelPosition, Text, WHITE,
    },
    style::text_anchor::{HPos, Pos, VPos},
};
use serde::Deserialize;

use crate::{
    report::{self, At},
    target::Target,
};

const WIDTH: u32 = 760;
const LINES_HEIGHT: u32 = 420;
const FONT: &str = "sans-serif";
/// Where bars begin, and the most that they are long.
const BARS_LEFT: i32 = 270;
const BARS_LENGTH: f64 = 350.0;
const BAR: i32 = 18;
/// Beyond this ratio of the greatest figure to the least, the vertical axis is logarithmic.
const WIDE: f64 = 30.0;
/// Told apart by people who see few colours, too.
const COLOURS: [RGBColor; 8] = [
    RGBColor(90, 90, 90),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(120, 170, 40),
];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What `run --json` printed
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where the charts go; those of the same name are replaced
    #[arg(long, default_value = "docs/charts")]
    out: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Figure {
    scenario: String,
    store: String,
    step: String,
    at: Option<At>,
    unit: String,
    median: f64,
    least: f64,
    most: f64,
    runs: usize,
    version: String,
    machine: Machine,
}

#[derive(Debug, Deserialize)]
struct Machine {
    cores: usize,
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn draw(options: &Options) -> Result<()> {
    let mut charts: BTreeMap<String, Vec<Figure>> = BTreeMap::new();
    for path in &options.files {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for (number, line) in text.lines().enumerate() {
            let figure = read(line).with_context(|| {
                let (path, number) = (path.display(), number + 1);
                format!("{path}, line {number} is none that `run --json` printed")
            })?;
            if let Some(figure) = figure {
                charts.entry(name(&figure)).or_default().push(figure);
            }
        }
    }
    ensure!(!charts.is_empty(), "there are no figures");
    fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    for (name, figures) in &charts {
        let path = options.out.join(format!("{name}.svg"));
        if figures.iter().any(|figure| figure.at.is_some()) {
            lines(&path, figures)?;
        } else {
            bars(&path, figures)?;
        }
        report::print(path.display())?;
    }
    Ok(())
}

/// `None` for a note.
fn read(line: &str) -> Result<Option<Figure>> {
    let line: serde_json::Value = serde_json::from_str(line)?;
    if line.get("note").is_some() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_value(line)?))
}

/// Figures with the same name are drawn together.
fn name(figure: &Figure) -> String {
    let what = match &figure.at {
        Some(_) => &figure.step,
        None => &figure.unit,
    };
    let name: String = format!("{} {what}", figure.scenario)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' })
        .collect();
    let name = name.split_whitespace().collect::<Vec<_>>().join("-");
    name.to_lowercase()
}

fn colour(store: &str) -> RGBColor {
    let place = Target::value_variants()
        .iter()
        .position(|target| target.name() == store);
    place
        .and_then(|place| COLOURS.get(place).copied())
        .unwrap_or(BLACK)
}

/// The stores, in the order in which they were measured.
fn stores(figures: &[Figure]) -> Vec<&str> {
    let mut stores: Vec<&str> = Vec::new();
    for figure in figures {
        if !stores.contains(&figure.store.as_str()) {
            stores.push(&figure.store);
        }
    }
    stores
}

fn footer(figures: &[Figure]) -> String {
    figures.first().map_or_else(String::new, |figure| {
        format!(
            "inbox {}, {} cores; medians, and least to most, of {} runs",
            figure.version, figure.machine.cores, figure.runs
        )
    })
}

fn write(canvas: &Canvas<'_>, text: &str, at: (i32, i32), size: i32, to: HPos) -> Result<()> {
    let style = (FONT, size).into_font().color(&BLACK);
    let style = style.pos(Pos::new(to, VPos::Center));
    canvas.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

fn bars(path: &Path, figures: &[Figure]) -> Result<()> {
    let mut steps: Vec<&str> = Vec::new();
    for figure in figures {
        if !steps.contains(&figure.step.as_str()) {
            steps.push(&figure.step);
        }
    }
    let groups = i32::try_from(steps.len())?;
    let rows = i32::try_from(figures.len())?;
    let height = 90 + rows * BAR + groups * 10;
    let canvas = SVGBackend::new(path, (WIDTH, u32::try_from(height)?)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let Some(first) = figures.first() else {
        return Ok(());
    };
    let title = format!("{}, {}", first.scenario, first.unit);
    write(&canvas, &title, (16, 18), 20, HPos::Left)?;
    let mut left = 16;
    for store in stores(figures) {
        let square = [(left, 40), (left + 12, 52)];
        canvas.draw(&Rectangle::new(square, colour(store).filled()))?;
        write(&canvas, store, (left + 18, 46), 15, HPos::Left)?;
        left += 40 + 8 * i32::try_from(store.len())?;
    }

    let most = figures.iter().map(|one| one.most).fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, reason = "pixels")]
    let place = |figure: f64| BARS_LEFT + (figure.max(0.0) / most * BARS_LENGTH) as i32;
    let mut top = 66;
    for step in steps {
        let group: Vec<&Figure> = figures.iter().filter(|one| one.step == step).collect();
        let middle = top + i32::try_from(group.len())? * BAR / 2;
        write(&canvas, step, (BARS_LEFT - 8, middle), 15, HPos::Right)?;
        for figure in group {
            let bar = [(BARS_LEFT, top + 2), (place(figure.median), top + BAR - 2)];
            canvas.draw(&Rectangle::new(bar, colour(&figure.store).filled()))?;
            let whisker = [
                (place(figure.least), top + BAR / 2),
                (place(figure.most), top + BAR / 2),
            ];
            canvas.draw(&PathElement::new(whisker, BLACK))?;
            let at = (place(figure.most) + 6, top + BAR / 2);
            write(&canvas, &format_figure(figure.median), at, 14, HPos::Left)?;
            top += BAR;
        }
        top += 10;
    }
    write(&canvas, &footer(figures), (16, top + 8), 13, HPos::Left)?;
    canvas.present()?;
    Ok(())
}

fn lines(path: &Path, figures: &[Figure]) -> Result<()> {
    let values = || {
        figures
            .iter()
            .filter_map(|one| one.at.as_ref())
            .map(|at| axis(at.value))
    };
    let (from, to) = (
        values().fold(f64::MAX, f64::min),
        values().fold(0.0, f64::max),
    );
    let least = figures.iter().map(|one| one.least).fold(f64::MAX, f64::min);
    let most = figures.iter().map(|one| one.most).fold(0.0, f64::max);
    let across = (from..to * 1.05).log_scale();
    if most > WIDE * least && least > 0.0 {
        lines_on(path, figures, across, (least * 0.8..most * 1.3).log_scale())
    } else {
        lines_on::<_, Range<f64>>(path, figures, across, 0.0..most * 1.1)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a place in a chart")]
fn axis(value: u64) -> f64 {
    value as f64
}

fn lines_on<X, Y>(path: &Path, figures: &[Figure], across: X, up: Y) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let canvas = SVGBackend::new(path, (WIDTH, LINES_HEIGHT)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let Some(first) = figures.first() else {
        return Ok(());
    };
    let title = format!("{}: {}, {}", first.scenario, first.step, first.unit);
    write(&canvas, &title, (16, 18), 20, HPos::Left)?;
    #[expect(clippy::cast_possible_wrap, reason = "pixels")]
    let bottom = LINES_HEIGHT as i32 - 12;
    write(&canvas, &footer(figures), (16, bottom), 13, HPos::Left)?;

    let mut chart = ChartBuilder::on(&canvas.margin(40, 30, 10, 20))
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(across, up)?;
    let what = first.at.as_ref().map_or("", |at| at.axis.as_str());
    chart
        .configure_mesh()
        .x_desc(what)
        .x_label_formatter(&|value| format_figure(*value))
        .y_label_formatter(&|value| format_figure(*value))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    for store in stores(figures) {
        let colour = colour(store);
        let of_store: Vec<(f64, &Figure)> = figures
            .iter()
            .filter(|one| one.store == store)
            .filter_map(|one| Some((axis(one.at.as_ref()?.value), one)))
            .collect();
        let line = of_store.iter().map(|(at, one)| (*at, one.median));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(store)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 6)], colour.filled()));
        let points = of_store.iter().map(|(at, one)| (*at, one.median));
        chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
        chart.draw_series(of_store.iter().map(|(at, one)| {
            let whisker = [(*at, one.least), (*at, one.most)];
            PathElement::new(whisker, colour.stroke_width(1))
        }))?;
    }
    chart
        .configure_series_labels()
        .position(if falls(figures) {
            SeriesLabelPosition::UpperRight
        } else {
            SeriesLabelPosition::UpperLeft
        })
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 15))
        .draw()?;
    canvas.present()?;
    Ok(())
}

/// Whether the lines end lower than they begin, all together.
fn falls(figures: &[Figure]) -> bool {
    let mut at: BTreeMap<u64, f64> = BTreeMap::new();
    for one in figures {
        if let Some(place) = &one.at {
            *at.entry(place.value).or_default() += one.median;
        }
    }
    at.first_key_value().map(|(_, sum)| *sum) > at.last_key_value().map(|(_, sum)| *sum)
}

/// As short as a label should be.
fn format_figure(figure: f64) -> String {
    let (figure, unit) = match figure {
        figure if figure >= 1_000_000.0 => (figure / 1e6, "M"),
        figure if figure >= 1000.0 => (figure / 1e3, "k"),
        figure => (figure, ""),
    };
    let digits = match figure {
        figure if figure >= 99.5 => 0,
        figure if figure >= 9.95 => 1,
        _ => 2,
    };
    let text = format!("{figure:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

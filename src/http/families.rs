//! Metrics in the text format of Prometheus: families with their help, and samples with labels.

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::problem::Problem;

/// The families of an answer, in the order in which they were added.
#[derive(Default)]
pub(super) struct Families(Vec<MetricFamily>);

/// A label and its value.
pub(super) type Label<'a> = (&'static str, &'a str);

fn labels(of: &[Label]) -> Vec<LabelPair> {
    let pair = |(name, value): &Label| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    of.iter().map(pair).collect()
}

impl Families {
    fn add(&mut self, name: &str, help: &str, kind: MetricType, metric: Metric) {
        if let Some(last) = self.0.last_mut().filter(|last| last.name() == name) {
            return last.mut_metric().push(metric);
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.mut_metric().push(metric);
        self.0.push(family);
    }

    /// Add a sample of something that only grows. All samples of a name are added one after the other.
    pub(super) fn counter(&mut self, name: &str, help: &str, of: &[Label], value: f64) {
        let (mut counter, mut metric) = (Counter::default(), Metric::from_label(labels(of)));
        counter.set_value(value);
        metric.set_counter(counter);
        self.add(name, help, MetricType::COUNTER, metric);
    }

    /// Add a sample of something that goes up and down. All samples of a name are added one after the other.
    pub(super) fn gauge(&mut self, name: &str, help: &str, of: &[Label], value: f64) {
        let (mut gauge, mut metric) = (Gauge::default(), Metric::from_label(labels(of)));
        gauge.set_value(value);
        metric.set_gauge(gauge);
        self.add(name, help, MetricType::GAUGE, metric);
    }

    /// Add a histogram: how many values lie within each bound and above the one before, how many there are in all, and
    /// their sum.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        of: &[Label],
        within: &[(f64, u64)],
        count: u64,
        sum: f64,
    ) {
        let (mut histogram, mut metric) = (Histogram::default(), Metric::from_label(labels(of)));
        let mut so_far = 0;
        let bucket = |(bound, n): &(f64, u64)| {
            so_far += n;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(so_far);
            bucket
        };
        histogram.set_bucket(within.iter().map(bucket).collect());
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum);
        metric.set_histogram(histogram);
        self.add(name, help, MetricType::HISTOGRAM, metric);
    }

    /// All families as text.
    pub(super) fn text(self) -> Result<String, Problem> {
        let mut text = String::new();
        let written = TextEncoder::new().encode_utf8(&self.0, &mut text);
        written.map_err(|why| Problem::internal(format!("the metrics cannot be written: {why}")))?;
        Ok(text)
    }
}

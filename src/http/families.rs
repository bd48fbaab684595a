//! Metrics as Prometheus reads them: families with their help, and samples with labels.

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder as _, TextEncoder};

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
    fn family(&mut self, name: &str, help: &str, kind: MetricType) -> &mut MetricFamily {
        if self.0.last().is_none_or(|last| last.name() != name) {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            self.0.push(family);
        }
        self.0.last_mut().expect("it was just added")
    }

    /// A sample of something that only grows. All samples of a name are added one after the other.
    pub(super) fn counter(&mut self, name: &str, help: &str, of: &[Label], value: f64) {
        let (mut counter, mut metric) = (Counter::default(), Metric::from_label(labels(of)));
        counter.set_value(value);
        metric.set_counter(counter);
        self.family(name, help, MetricType::COUNTER).mut_metric().push(metric);
    }

    /// A sample of something that goes up and down, likewise.
    pub(super) fn gauge(&mut self, name: &str, help: &str, of: &[Label], value: f64) {
        let (mut gauge, mut metric) = (Gauge::default(), Metric::from_label(labels(of)));
        gauge.set_value(value);
        metric.set_gauge(gauge);
        self.family(name, help, MetricType::GAUGE).mut_metric().push(metric);
    }

    /// A histogram: how many were within each bound, all of them, and their sum.
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
        self.family(name, help, MetricType::HISTOGRAM).mut_metric().push(metric);
    }

    /// As text. A family without a sample is left out.
    pub(super) fn text(self) -> String {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.0, &mut text).expect("every family has a name and a sample");
        String::from_utf8(text).expect("it was made of text")
    }
}

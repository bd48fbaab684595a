//! Metrics in the text format of Prometheus: families with their help, and samples with labels.

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric as Sample, MetricFamily, MetricType};

use super::metric::{Kind, Metric};
use super::problem::Problem;

/// The families of an answer, in the order in which they were added.
#[derive(Default)]
pub(super) struct Families(Vec<MetricFamily>);

fn labels(metric: &Metric, values: &[&str]) -> Vec<LabelPair> {
    let pair = |(name, value): (&&str, &&str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
    metric.labels.iter().zip(values).map(pair).collect()
}

impl Families {
    fn push(&mut self, of: &Metric, sample: Sample) {
        if let Some(last) = self.0.last_mut().filter(|last| last.name() == of.name) {
            return last.mut_metric().push(sample);
        }
        let mut family = MetricFamily::default();
        family.set_name(of.name.to_owned());
        family.set_help(of.help.to_owned());
        family.set_field_type(match of.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::Histogram => MetricType::HISTOGRAM,
        });
        family.mut_metric().push(sample);
        self.0.push(family);
    }

    /// Add a sample of a counter or a gauge, with the values of its labels. All samples of a metric are added one after the other.
    pub(super) fn add(&mut self, metric: &Metric, of: &[&str], value: f64) {
        let mut sample = Sample::from_label(labels(metric, of));
        if metric.kind == Kind::Counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            sample.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            sample.set_gauge(gauge);
        }
        self.push(metric, sample);
    }

    /// Add a histogram: how many values lie within each bound and above the one before, how many there are in all, and
    /// their sum.
    pub(super) fn histogram(&mut self, metric: &Metric, of: &[&str], within: &[(f64, u64)], count: u64, sum: f64) {
        let (mut histogram, mut sample) = (Histogram::default(), Sample::from_label(labels(metric, of)));
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
        sample.set_histogram(histogram);
        self.push(metric, sample);
    }

    /// All families as text.
    pub(super) fn text(self) -> Result<String, Problem> {
        let mut text = String::new();
        let written = TextEncoder::new().encode_utf8(&self.0, &mut text);
        written.map_err(|why| Problem::internal(format!("the metrics cannot be written: {why}")))?;
        Ok(text)
    }
}

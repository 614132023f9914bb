package kv

import "github.com/prometheus/client_golang/prometheus"

// batcherMetrics are the metrics of a Batcher. Their help texts are in newBatcherMetrics.
type batcherMetrics struct {
	requests prometheus.Counter
	siblings prometheus.Histogram
	halved   prometheus.Counter
	busy     prometheus.Counter
	deferred prometheus.Counter
}

// newBatcherMetrics returns the metrics of b, and registers them with r if that is not nil.
func newBatcherMetrics(b *Batcher, r prometheus.Registerer) batcherMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}

	m := batcherMetrics{
		requests: counter("carillon_batch_requests_total", "Group commit requests that were sent to etcd."),
		siblings: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "carillon_batch_transactions", Help: "Transactions in one group commit request.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 48, 64, 96, 128}}),
		halved:   counter("carillon_batch_halved_total", "Requests that etcd rejected because of their content and that were sent again in halves."),
		busy:     counter("carillon_batch_too_many_requests_total", "Requests that etcd rejected because it was too busy and that were sent again."),
		deferred: counter("carillon_batch_deferred_total", "Transactions that had to wait for an earlier one on the same keys."),
	}

	if r != nil {
		r.MustRegister(m.requests, m.siblings, m.halved, m.busy, m.deferred, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "carillon_batch_queue", Help: "Transactions that are waiting to be sent."},
			func() float64 { return float64(len(b.room)) }))
	}

	return m
}

package check

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// busyHistory returns about n events of a cluster that runs a hundred tasks.
func busyHistory(b *testing.B, n int) *sim {
	s := newSim(b, 8, "a", "b")

	for i := range 100 {
		s.create(fmt.Sprintf("t%d", i), i%8, 1, nil)
	}

	for len(s.events) < n {
		s.work(1)
	}

	return s
}

func BenchmarkCheck_AllThatCanBeAsked(b *testing.B) {
	s := busyHistory(b, 200_000)
	opts := s.demanding()
	b.ReportAllocs()

	for b.Loop() {
		if r := s.check(opts); !r.OK() {
			b.Fatal(r)
		}
	}

	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.events)), "ns/event")
}

func BenchmarkCheckProbeLog(b *testing.B) {
	s := busyHistory(b, 200_000)
	var log strings.Builder

	for _, ev := range s.events {
		if k, ok := s.keys.ParseRun(ev.Key); ok && !ev.Deleted {
			for _, word := range []string{"START", "END"} {
				fmt.Fprintf(&log, "%s %s 1 %d %s 1\n", word, k.Run, ev.CreateRevision, time.UnixMilli(s.now).Format(time.RFC3339))
			}
		}
	}

	b.ReportAllocs()

	for b.Loop() {
		if v := CheckProbeLog(io.Reader(strings.NewReader(log.String())), s.keys, s.events); len(v) > 0 {
			b.Fatal(v[0])
		}
	}

	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.events)), "ns/event")
}

package httpaction

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// benchmarkCallers is the number of requests in progress: the default of limit.per_target.
const benchmarkCallers = 100

// BenchmarkRunAttempt compares attempts with bare net/http: parallel POSTs of a small body on connections that are
// reused. Compare cpu-µs/op, which includes the server and depends less on other load of the machine than ns/op.
func BenchmarkRunAttempt(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		fmt.Fprint(w, `{"id":7}`)
	}))
	defer s.Close()

	h := task.HTTP{Method: http.MethodPost, URL: s.URL + "/orders/${run.scheduled_time}", JSON: []byte(`{"day":"${run.scheduled_time}"}`)}
	r, err := New(context.Background(), Config{Rules: func() (Rules, error) { return Rules{HTTP: loopback}, nil }, Spool: spool.New(spool.Config{Dir: b.TempDir()})})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()

	b.Run("attempt", func(b *testing.B) {
		runCallers(b, func(pb *testing.PB) {
			for pb.Next() {
				a, _ := newAttempt(h)
				if res := r.RunAttempt(a, process.NewOrders()); res.State != task.Succeeded {
					b.Errorf("%+v", res)
					return
				}
			}
		})
	})

	b.Run("net_http", func(b *testing.B) {
		transport := &http.Transport{MaxIdleConnsPerHost: 128}
		defer transport.CloseIdleConnections()

		client := &http.Client{Transport: transport}
		runCallers(b, func(pb *testing.PB) {
			for pb.Next() {
				resp, err := client.Post(s.URL+"/orders/2026-11-26T07:00:00.000Z", typeJSON, strings.NewReader(`{"day":"2026-11-26T07:00:00.000Z"}`))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	})
}

// runCallers runs a benchmark with benchmarkCallers goroutines, and reports the processor time of the process.
func runCallers(b *testing.B, caller func(*testing.PB)) {
	procs := runtime.GOMAXPROCS(0)
	b.SetParallelism((benchmarkCallers + procs - 1) / procs)
	b.ReportAllocs()
	b.ResetTimer()

	before := executortest.CPU(b, unix.RUSAGE_SELF)
	b.RunParallel(caller)
	used := executortest.CPU(b, unix.RUSAGE_SELF) - before

	b.ReportMetric(float64(used)/float64(b.N)/float64(time.Microsecond), "cpu-µs/op")
}

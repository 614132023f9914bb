package httpaction

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkRunAttempt compares attempts with bare net/http: parallel POSTs of a small body on connections that are
// reused.
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
		b.ReportAllocs()
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
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
		b.ReportAllocs()
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
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

// A target may repeat a secret that it has received, which must not keep the node busy.
func BenchmarkMasker_RepeatedValue(b *testing.B) {
	m := &masker{}
	m.hide("s3cr/t")
	m.hide(`pass"word/&`)
	part := []byte(strings.Repeat("s3cr/t", 8<<10/6))

	b.SetBytes(int64(len(part)))
	w := m.writer(io.Discard)
	for b.Loop() {
		_, _ = w.Write(part)
	}
}

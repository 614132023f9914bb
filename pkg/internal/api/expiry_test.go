package api_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestCluster_WarnsOfCertificatesThatEndSoon(t *testing.T) {
	w := newWorld(t)
	ends := func(d time.Duration) task.Time { return task.At(w.clock.now().Add(d)) }
	w.put(w.store.Keys().Node("n1"), task.Node{Name: "n1", State: task.NodeReady, Expires: []task.Expiry{
		{Setting: "tls_cert", At: ends(6*24*time.Hour + time.Hour)}, {Setting: "etcd_ca", At: ends(-time.Hour)},
	}})
	st, err := w.Cluster.Status(t.Context())
	must(t, err)

	for _, words := range []string{"node n1: its tls_cert expires on 20|, in 6 days", "node n1: its etcd_ca expired on 20|and is rejected"} {
		begin, end, _ := strings.Cut(words, "|")
		if !slices.ContainsFunc(st.Warnings, func(s string) bool { return strings.HasPrefix(s, begin) && strings.Contains(s, end) }) {
			t.Errorf("no warning %q in %q", words, st.Warnings)
		}
	}
}

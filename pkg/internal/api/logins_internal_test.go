package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestLogins_BoundsWhatItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins("n1", time.Now, func(task.AuditRecord) {}, zap.NewNop())

		for range loginBurst {
			if !l.mayTry("10.0.0.1") {
				t.Fatal("refused within the burst")
			}
		}

		if l.mayTry("10.0.0.1") {
			t.Error("allowed beyond the burst")
		}

		if !l.mayTry("10.0.0.2") {
			t.Error("another client is refused")
		}

		time.Sleep(time.Second)

		if !l.mayTry("10.0.0.1") {
			t.Error("still refused a second later")
		}

		for i := range 3 * maxLoginClients {
			l.mayTry(fmt.Sprint("client", i))
		}

		if n := len(l.clients); n > maxLoginClients {
			t.Errorf("%d clients are remembered", n)
		}
	})
}

// However many clients are refused, a node records 20 of them within a minute, and then says how many it left out.
//
// Verifies: G35
func TestLogins_RecordsSomeAndCountsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // a timer adds records, too
		var added []task.AuditRecord
		l := newLogins("n1", time.Now, func(a task.AuditRecord) { mu.Lock(); defer mu.Unlock(); added = append(added, a) }, zap.NewNop())
		recorded := func() []task.AuditRecord { mu.Lock(); defer mu.Unlock(); return slices.Clone(added) }
		refuse := func(client int, status int) {
			r := httptest.NewRequest(http.MethodGet, "/v1/tasks", nil)
			r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:4711", client/250, client%250+1)
			l.reportRefusal(r, httpapi.Caller{}, httpapi.Fail(status, "unauthorized", "the token is not known"))
		}

		for i := range 1000 {
			refuse(i, http.StatusUnauthorized)
		}
		refuse(0, http.StatusForbidden) // a caller with a valid token is no refused login
		synctest.Wait()
		records := recorded()
		if len(records) != recordsPerMinute {
			t.Fatalf("%d records of 1000 refused logins", len(records))
		}

		time.Sleep(recordWindow)
		synctest.Wait()
		records = recorded()
		if len(records) != recordsPerMinute+1 || records[recordsPerMinute].Reason != "980 refused logins were left out" {
			t.Errorf("after a minute: %d records, %+v", len(records), records[len(records)-1])
		}

		refuse(1, http.StatusUnauthorized)
		time.Sleep(3 * recordWindow)
		synctest.Wait()
		records = recorded()
		if len(records) != recordsPerMinute+2 {
			t.Errorf("then one more is refused: %d records", len(records))
		}

		for _, a := range records {
			if a.Operation != "login" || a.Outcome != task.AuditRefused || a.Node != "n1" || a.ID == "" || a.Time.IsZero() ||
				a.Address == "" && !strings.Contains(a.Reason, "left out") {
				t.Errorf("record %+v", a)
			}
		}
	})
}

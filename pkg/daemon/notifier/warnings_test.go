package notifier

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// noteWarnings lets the leader find these warnings, all with one code.
func (w *world) noteWarnings(code string, texts ...string) {
	w.set(func() {
		w.warnings = nil
		for _, text := range texts {
			w.warnings = append(w.warnings, task.Warning{Code: code, Text: text})
		}
	})
}

// openedAlert returns an alert about the cluster.
func (w *world) openedAlert(code string) task.Alert {
	w.Helper()
	all, err := w.Store.ClusterAlerts(w.Context())
	w.Must(err)
	for _, a := range all {
		if a.Code == code {
			return a
		}
	}
	w.Fatalf("after %s: no alert %s", time.Since(w.began), code)

	return task.Alert{}
}

func TestNotifier_AlertsOfWarningsThatLast(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })

		// One that is over after 50 seconds alerts nobody.
		w.noteWarnings(task.WarnNodeBlocked, "node n2 accepts no runs")
		w.wait(50 * time.Second)
		w.noteWarnings("")
		w.wait(5 * time.Minute)
		w.expectNone(slack)

		// The next one does not count from the beginning of that one.
		w.noteWarnings(task.WarnNodeBlocked, "node n2 accepts no runs")
		w.wait(50 * time.Second)
		if text := w.clusterAlert(task.WarnNodeBlocked); text != "" {
			w.Errorf("50 seconds after the beginning of the second warning: %q", text)
		}
		w.noteWarnings("")
		w.wait(5 * time.Minute)
		w.expectNone(slack)

		w.noteWarnings(task.WarnCertificateExpired, "node n2: its tls_cert expired")
		w.wait(50 * time.Second)
		if text := w.clusterAlert(task.WarnCertificateExpired); text != "" {
			w.Errorf("after 50 seconds: %q", text)
		}
		w.wait(30 * time.Second)
		if a := w.openedAlert(task.WarnCertificateExpired); a.Text != "node n2: its tls_cert expired" || a.Severity() != "critical" {
			w.Errorf("the alert is %+v", a)
		}
		w.wait(20 * time.Second)
		if run := w.queued(slack); run == nil || !strings.HasPrefix(run.Env["ALERT_TEXT"], "PROBLEM cluster/certificate_expired: node n2: its tls_cert expired, since ") {
			w.Fatalf("the message is %+v", run)
		}
		w.end(slack, task.Succeeded)

		// What could not be read closes nothing.
		w.noteWarnings("")
		w.set(func() { w.incomplete = true })
		w.wait(10 * time.Minute)
		if w.clusterAlert(task.WarnCertificateExpired) == "" {
			w.Error("the alert was closed although some warnings could not be read")
		}
		w.expectNone(slack)

		// A problem that is gone for a moment is not sent.
		w.set(func() { w.incomplete = false })
		w.wait(time.Minute)
		if w.clusterAlert(task.WarnCertificateExpired) != "" {
			w.Error("the alert is open although the warning is gone")
		}
		w.noteWarnings(task.WarnCertificateExpired, "node n2: its tls_cert expired")
		w.wait(3 * time.Minute)
		w.noteWarnings("")
		w.expectNone(slack)
		w.wait(4 * time.Minute)
		w.expectNone(slack)
		w.wait(2 * time.Minute)
		if run := w.queued(slack); run == nil || !strings.HasPrefix(run.Env["ALERT_TEXT"], "RESOLVED cluster/certificate_expired: solved after ") {
			w.Errorf("the message is %+v", run)
		}
	})
}

// Ten thousand nodes have the same problem.
//
// Verifies: G59
func TestNotifier_AlertsOnceOfWarningsOfTheSameKind(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })

		var texts []string
		for i := range 10_000 {
			texts = append(texts, fmt.Sprintf("node n%04d accepts no runs: %s", i, strings.Repeat("its disk is full ", 20)))
		}
		w.noteWarnings(task.WarnNodeBlocked, texts...)
		w.wait(2 * time.Minute)

		a := w.openedAlert(task.WarnNodeBlocked)
		if !strings.HasPrefix(a.Text, "10000 warnings: node n0000 accepts no runs: ") || !strings.HasSuffix(a.Text, "; and 9997 more") {
			w.Errorf("the text is %q", a.Text)
		}
		if n := len(record.EncodeAlert(a)); n > 1000 {
			w.Errorf("the record has %d bytes", n)
		}
		if all, err := w.Store.ClusterAlerts(w.Context()); err != nil || len(all) != 1 {
			w.Errorf("%d alerts, %v", len(all), err)
		}
		if run := w.queued(slack); run == nil || !strings.Contains(run.Env["ALERT_TEXT"], "\n10000 warnings: ") || !strings.Contains(run.Env["ALERT_TEXT"], "and 9997 more") {
			w.Errorf("the message is %+v", run)
		}
	})
}

func TestNotifier_ReportsPastOutages(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		beat := func() []byte {
			res, err := w.Etcd.Get(w.Context(), w.Keys.Heartbeat())
			w.Must(err)
			if len(res.Kvs) == 0 {
				return nil
			}
			return res.Kvs[0].Value
		}

		// Without receivers, nothing is written.
		w.wait(10 * time.Minute)
		if beat() != nil {
			w.Fatal("a heartbeat without receivers")
		}
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })
		w.wait(time.Minute)

		// A leader of another node takes over within a minute: that is no outage.
		w.Stop()
		w.wait(time.Minute)
		w.lead()
		w.wait(time.Minute)
		w.expectNone(slack)

		stopped := time.Now()
		w.Stop()
		w.wait(20 * time.Minute)
		w.lead()
		began := time.Now()
		w.wait(30 * time.Second)
		a := w.openedAlert(task.WarnOutage)
		if early := stopped.Sub(a.Since.Time); early < 0 || early > heartbeatEvery+passEvery {
			w.Errorf("the outage began at %s, %s before the leader stopped", a.Since, early)
		}
		want := fmt.Sprintf("the cluster had no leader from %s to %s", a.Since.UTC().Format(time.RFC3339), began.UTC().Format(time.RFC3339))
		if run := w.queued(slack); run == nil || !strings.Contains(run.Env["ALERT_TEXT"], want) {
			w.Fatalf("the message %+v has no %q", run, want)
		}
		w.end(slack, task.Succeeded)

		// The next term does not report it again, even if the heartbeat was not written.
		w.Put(w.Keys.Heartbeat(), record.Encode(record.Timestamp{At: a.Since}))
		w.lead()
		w.wait(10 * time.Minute)
		w.expectNone(slack)

		// Another one within the hour is reported, too.
		w.Stop()
		w.wait(5 * time.Minute)
		w.lead()
		w.wait(30 * time.Second)
		b := w.openedAlert(task.WarnOutage)
		if run := w.queued(slack); run == nil || !b.Since.After(a.Since.Time) || b.Openings != 2 || !strings.Contains(run.Env["ALERT_TEXT"], b.Since.UTC().Format(time.RFC3339)) {
			w.Fatalf("the message about %+v is %+v", b, run)
		}
		w.end(slack, task.Succeeded)

		// It closes without a message, because nothing has happened then.
		w.wait(2 * time.Hour)
		if w.clusterAlert(task.WarnOutage) != "" {
			w.Error("the alert is still open")
		}
		w.expectNone(slack)
		if n := len(w.sent(slack).Delivered); n > 0 {
			w.Errorf("%d alerts are delivered", n)
		}

		// Receivers that are named much later are told of no outage.
		w.set(func() { w.cluster.AlertReceivers = nil })
		w.wait(time.Hour)
		if beat() != nil {
			w.Error("the heartbeat is left")
		}
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })
		w.wait(10 * time.Minute)
		w.expectNone(slack)
	})
}

// The leader stays while etcd is full. The outage ends when it can write again.
func TestNotifier_ReportsWhenAnOutageHasEnded(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })
		w.wait(time.Minute)
		w.writes.full.Store(true)
		w.wait(10 * time.Minute)
		w.writes.full.Store(false)
		freed := time.Now()
		w.wait(time.Minute)

		a := w.openedAlert(task.WarnOutage)
		_, end, _ := strings.Cut(a.Text, " to ")
		end, _, _ = strings.Cut(end, " ")
		if at, err := time.Parse(time.RFC3339, end); err != nil || at.Before(freed.Truncate(time.Second)) || at.Sub(freed) > 2*passEvery {
			t.Errorf("the outage ended at %s; the text is %q", freed, a.Text)
		}
	})
}

// The heartbeat of a restored cluster is that of the backup: its last leader worked for longer.
func TestNotifier_ReportsARestore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })
		w.wait(time.Minute)
		w.Stop()

		w.wait(8 * time.Hour)
		w.set(func() { w.cluster.Restored = []task.Restored{{At: task.At(time.Now())}} })
		w.wait(time.Minute)
		w.lead()
		w.wait(30 * time.Second)

		a := w.openedAlert(task.WarnOutage)
		if strings.Contains(a.Text, "no leader") || !strings.Contains(a.Text, "restored") {
			t.Errorf("the text is %q", a.Text)
		}
		if run := w.queued(slack); run == nil || !strings.Contains(run.Env["ALERT_TEXT"], a.Text) {
			t.Errorf("the message is %+v", run)
		}
		w.end(slack, task.Succeeded)

		// The next outage is one.
		w.Stop()
		w.wait(20 * time.Minute)
		w.lead()
		w.wait(30 * time.Second)
		if a := w.openedAlert(task.WarnOutage); !strings.Contains(a.Text, "no leader") {
			t.Errorf("the text is %q", a.Text)
		}
	})
}

// A leader that does not trust its clock writes nothing. Others fire meanwhile.
func TestNotifier_ReportsNoOutageOfItsClock(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addReceiver(slack)
		w.set(func() { w.cluster.AlertReceivers = []string{slack} })
		w.wait(time.Minute)
		w.set(func() { w.refused = fmt.Errorf("the clock is not trusted") })
		w.wait(time.Hour)
		w.set(func() { w.refused = nil })
		w.wait(5 * time.Minute)
		w.expectNone(slack)
	})
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
)

// fakeMembers is an etcd with one member.
type fakeMembers struct{ member *etcdadmin.Member }

func (f *fakeMembers) Members(context.Context, time.Duration) []etcdadmin.Member {
	return []etcdadmin.Member{*f.member}
}

func TestEtcdMonitor_TellsEachStateOnce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	var now etcdadmin.Member
	metrics := prometheus.NewRegistry()
	e := newEtcdMonitor(&fakeMembers{&now}, metrics, zap.New(core))
	full := []string{etcdadmin.AlarmNoSpace}
	for _, step := range []struct {
		m    etcdadmin.Member
		want string // the level of the log line; "": none
	}{
		{etcdadmin.Member{Size: 79}, ""},
		{etcdadmin.Member{Size: 80}, "warn"},
		{etcdadmin.Member{Size: 94}, ""},
		{etcdadmin.Member{Size: 95}, "warn"},
		{etcdadmin.Member{Err: errors.New("away")}, ""},
		{etcdadmin.Member{Size: 96}, ""},
		{etcdadmin.Member{Size: 99, Alarms: full}, "error"},
		{etcdadmin.Member{Size: 20, Alarms: full}, ""}, // it accepts no writes until the alarm is disarmed
		{etcdadmin.Member{Size: 20}, "info"},
		{etcdadmin.Member{Size: 20, Alarms: []string{etcdadmin.AlarmCorrupt}}, "error"},
	} {
		now = step.m
		now.Endpoint, now.Quota, now.InUse = "one", 100, now.Size/2
		for range 2 {
			e.checkMember(t.Context())
		}
		got := ""
		for _, l := range logs.TakeAll() {
			got += l.Level.String()
		}
		if got != step.want {
			t.Errorf("at %d with %v: logged %q, want %q", now.Size, now.Alarms, got, step.want)
		}
		want := "map[]"
		if now.Err == nil {
			raised := map[string]int{}
			for _, a := range now.Alarms {
				raised[a] = 1
			}
			want = fmt.Sprint(map[string]int64{"db": now.Size, "in_use": now.InUse, "quota": 100,
				"CORRUPT": int64(raised[etcdadmin.AlarmCorrupt]), "NOSPACE": int64(raised[etcdadmin.AlarmNoSpace])})
		}
		if got := gauges(t, metrics); got != want {
			t.Errorf("at %d with %v: the metrics say %s, want %s", now.Size, now.Alarms, got, want)
		}
	}
}

// gauges returns the metrics of a member, with short names.
func gauges(t *testing.T, r *prometheus.Registry) string {
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]string{"carillon_etcd_db_bytes": "db", "carillon_etcd_db_in_use_bytes": "in_use", "carillon_etcd_quota_bytes": "quota"}
	all := map[string]int64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := short[f.GetName()]
			if name == "" {
				name = m.GetLabel()[0].GetValue() // the name of the alarm
			}
			all[name] = int64(m.GetGauge().GetValue())
		}
	}
	return fmt.Sprint(all)
}

package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestStatus_WarnsOfEtcd(t *testing.T) {
	full := []string{"NOSPACE"}
	const mib = 1 << 20
	for _, c := range []struct {
		what   string
		m      client.EtcdMember
		change func(*client.ClusterStatus)
		want   []string // texts that the warnings contain
	}{
		{what: "well", m: client.EtcdMember{DBSize: 79 * mib, DBInUse: 79 * mib, DBQuota: 100 * mib, Version: "3.7.3", Applied: 5, Index: 5}},
		{what: "without a quota", m: client.EtcdMember{DBSize: 1 << 40, DBInUse: 1 << 40}},
		{what: "small, and mostly free", m: client.EtcdMember{DBSize: 30 * mib, DBInUse: mib, DBQuota: 100 * mib}},
		{what: "filling up", m: client.EtcdMember{DBSize: 80 * mib, DBInUse: 79 * mib, DBQuota: 100 * mib}, want: []string{"one is at 80 % of its quota of 100 MiB"}},
		{what: "filling up, with free space", m: client.EtcdMember{DBSize: 90 * mib, DBInUse: 50 * mib, DBQuota: 100 * mib}, want: []string{"40 MiB of that are free inside the file"}},
		{what: "half full, and mostly free", m: client.EtcdMember{DBSize: 50 * mib, DBInUse: 20 * mib, DBQuota: 100 * mib}, want: []string{"uses 20 MiB of the 50 MiB"}},
		{what: "full", m: client.EtcdMember{DBSize: 101 * mib, DBInUse: 100 * mib, DBQuota: 100 * mib, Alarms: full}, want: []string{"one is full, at 101 % of its quota of 100 MiB"}},
		{what: "full, by its own account", m: client.EtcdMember{Alarms: full}, want: []string{"one is full: "}},
		{what: "not full any more", m: client.EtcdMember{DBSize: 20 * mib, DBInUse: 20 * mib, DBQuota: 100 * mib, Alarms: full}, want: []string{"has space again but still"}},
		{what: "corrupt", m: client.EtcdMember{Alarms: []string{"CORRUPT"}}, want: []string{"alarm CORRUPT"}},
		{what: "another alarm", m: client.EtcdMember{Alarms: []string{"NEWS"}}, want: []string{"alarm NEWS"}},
		{what: "away", m: client.EtcdMember{Error: "timed out"}, want: []string{"one does not respond, or responds with an error: timed out"}},
		{what: "too old", m: client.EtcdMember{Fault: "version 3.5.1 is too old"}, want: []string{"3.5.1 is too old"}},
		{what: "slow", m: client.EtcdMember{Index: 5000, Applied: 3000}, want: []string{"the last 2000 committed writes"}},
		{what: "never compacted", change: func(s *client.ClusterStatus) { s.Revisions = client.Revisions{Newest: 1_000_001, Oldest: 1} }, want: []string{"never been compacted"}},
		{what: "young", change: func(s *client.ClusterStatus) { s.Revisions = client.Revisions{Newest: 900_000, Oldest: 1} }},
		{what: "rarely compacted", change: func(s *client.ClusterStatus) {
			s.Revisions = client.Revisions{Newest: 5_000_000, Oldest: 3_000_000}
		}, want: []string{"keeps 2000000 revisions"}},
		{what: "revisions unknown", change: func(s *client.ClusterStatus) { s.Revisions = client.Revisions{} }},
		{what: "of different versions", m: client.EtcdMember{Version: "3.6.14"}, change: func(s *client.ClusterStatus) {
			s.Etcd = append(s.Etcd, client.EtcdMember{Version: "3.7.3"}, client.EtcdMember{Version: "3.7.3"}, client.EtcdMember{})
		}, want: []string{"(3.6.14, 3.7.3)"}},
		{what: "of different quotas", m: client.EtcdMember{DBQuota: 100 * mib}, change: func(s *client.ClusterStatus) {
			s.Etcd = append(s.Etcd, client.EtcdMember{DBQuota: 50 * mib})
		}, want: []string{"(100 MiB, 50 MiB)"}},
		{what: "with entries that nobody can read", change: func(s *client.ClusterStatus) { s.Unreadable = 2 }, want: []string{"the entries of 2 tasks cannot be read, so they do not run"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			c.m.Endpoint = "one"
			st := good(c.m)

			if c.change != nil {
				c.change(&st)
			}

			// Programs can tell the warnings of a member that accepts no writes from others.
			alarms := slices.ContainsFunc(clusterWarnings(st), func(w task.Warning) bool { return w.Code == task.WarnEtcdAlarm })
			if want := len(c.m.Alarms) > 0; alarms != want {
				t.Errorf("a warning of an alarm: %t, want %t", alarms, want)
			}

			got := task.WarningTexts(clusterWarnings(st))
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}

			for i, want := range c.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("got %q, want %q in it", got[i], want)
				}
			}
		})
	}
}

func TestStatus_SaysHowToMakeSpace(t *testing.T) {
	member := func(endpoint string, size int64, leader bool, alarms ...string) client.EtcdMember {
		return client.EtcdMember{Endpoint: endpoint, DBSize: size, DBQuota: 100, Leader: leader, Alarms: alarms}
	}

	at := func(endpoints, what string) string {
		return "ETCDCTL_ENDPOINTS=" + endpoints + " etcdctl --command-timeout 10m " + what
	}

	for _, c := range []struct {
		what string
		st   client.ClusterStatus
		want []string
	}{
		{"enough", good(member("a", 79, true)), nil},
		{"filling up", good(member("a", 80, true)), []string{at("a", "compact --physical 150000"), at("a", "defrag")}},
		{"full, the leader last, one away", good(member("a", 50, true), member("b", 99, false, "NOSPACE"), client.EtcdMember{Endpoint: "c", Error: "away"}),
			[]string{at("b,a", "compact --physical 150000"), at("b", "defrag"), at("a", "defrag"), at("b,a", "alarm disarm")}},
		{"embedded", good(member("embedded", 5, true, "NOSPACE")), []string{at("unix:///s", "compact --physical 150000"),
			at("unix:///s", "defrag"), at("unix:///s", "alarm disarm")}},
		{"embedded, of several", good(member("embedded", 5, false, "NOSPACE"),
			client.EtcdMember{Name: "n2", Endpoint: "http://h2:2380", Socket: "unix:///s", DBSize: 7, DBQuota: 100, Leader: true}), []string{
			at("unix:///s", "compact --physical 150000"), at("unix:///s", "defrag"), at("unix:///s", "defrag # on the host of n2"), at("unix:///s", "alarm disarm")}},
		{"nobody answers", good(client.EtcdMember{Endpoint: "c", Alarms: []string{"NOSPACE"}}), nil},
	} {
		if got := makeSpace(c.st, "unix:///s"); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
}

func TestStatus_DoesTheSum(t *testing.T) {
	st := good(client.EtcdMember{DBInUse: 2 << 20, DBQuota: 100 << 20}, client.EtcdMember{DBInUse: 3 << 20, DBQuota: 50 << 20}, client.EtcdMember{Error: "away"})
	st.Tasks = 1024
	if r := capacityLeft(st, 4.28); r == nil || *r != (client.Room{BytesPerTask: 3 << 10, HistoryPerTask: 4.2, Tasks: 50 << 20 / 100 * 80 / (3 << 10)}) {
		t.Errorf("got %+v", r)
	}

	st.Tasks = 99
	if r := capacityLeft(st, 1); r != nil {
		t.Errorf("99 tasks are too few for an estimate, but it is %+v", r)
	}

	st = good(client.EtcdMember{Error: "away"})
	if r := capacityLeft(st, 1); r != nil {
		t.Errorf("no etcd has answered, but %+v", r)
	}
}

// good returns a status without a warning.
func good(members ...client.EtcdMember) client.ClusterStatus {
	return client.ClusterStatus{Leader: "a", NodesReady: 1, Shards: 8, ShardsOwned: 8, Tasks: 1000, Etcd: members,
		Revisions: client.Revisions{Newest: 150_000, Oldest: 50_000}}
}

//go:build linux

package cli_test

import (
	"bufio"
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/test/owners"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// watching runs a command until the test ends, and returns its lines as they appear.
func watching(t *testing.T, env map[string]string, words ...string) (next func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Main(ctx, words, cli.IO{In: strings.NewReader(""), Out: w, Err: io.Discard, Env: func(k string) string { return env[k] }})
		w.Close()
	}()

	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(r); in.Scan(); {
			lines <- in.Text()
		}
	}()

	t.Cleanup(func() {
		cancel()
		go func() {
			for range lines { // ignores further output
			}
		}()

		if code := <-ended; code != 130 {
			t.Errorf("%v: exit code %d when it is interrupted", words, code)
		}
	})

	return func() string {
		t.Helper()

		select {
		case line := <-lines:
			return line
		case <-time.After(2 * time.Minute):
			t.Fatalf("%v: no line came", words)
			return ""
		}
	}
}

// watchedCluster returns a cluster with one API and no scheduler, and the environment of commands that use it.
func watchedCluster(t *testing.T) (*kv.Client, record.Keys, *client.Client, map[string]string) {
	t.Helper()
	etcd := kvtest.Memory(t)
	keys, err := record.NewKeys("/" + task.NewUID())
	must(t, err)
	st := store.New(etcd, kv.Direct(etcd), keys)
	secret, first := firstAccess()
	cluster, _, err := st.Bootstrap(t.Context(), shards, time.Now(), first)
	must(t, err)
	keeper, stop := runKeeper(t, etcd, keys)
	t.Cleanup(stop)
	h, err := api.New(api.Config{Store: st, Access: keeper, Cluster: cluster, Node: "node-a", Ref: ref, Ask: owners.Owner{Node: "node-a", Store: st, Shards: shards, Ref: ref, Now: time.Now}.Ask})
	must(t, err)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := client.New(client.Config{Server: server.URL, Token: secret})
	must(t, err)

	return etcd, keys, c, map[string]string{"CARILLON_SERVER": server.URL, "CARILLON_TOKEN": secret}
}

// wantParts checks that a line contains some texts.
func wantParts(t *testing.T, line string, parts ...string) {
	t.Helper()

	for _, p := range parts {
		if !strings.Contains(line, p) {
			t.Fatalf("%q is not in %q", p, line)
		}
	}
}

// TestWatch_TellsEachChangeInALine checks that every item is printed once, then each change, and that an item
// has left the list.
func TestWatch_TellsEachChangeInALine(t *testing.T) {
	etcd, keys, c, env := watchedCluster(t)
	create := func(name, team string) {
		t.Helper()
		s := task.Defaults()
		s.Name, s.Schedule, s.Action, s.Labels = name, task.Schedules{"0 3 1 1 *"}, task.Action{Noop: &task.Noop{}}, map[string]string{"team": team}
		_, err := c.Tasks.Create(t.Context(), "default", s)
		must(t, err)
	}

	create("a", "data")
	create("b", "data")
	create("other", "web")

	table := watching(t, env, "task", "list", "-w", "-l", "team=data", "--columns", "name,next,state")
	objects := watching(t, env, "task", "list", "-w", "-l", "team=data", "-o", "jsonl")
	query := watching(t, env, "task", "list", "-w", "label:team=data", "-label:team=none", "--columns", "name,state")
	runs := watching(t, env, "run", "list", "-w", "--state", "queued", "--columns", "task,result")
	selected := watching(t, env, "run", "list", "-w", "-l", "team=data", "--columns", "task,result")
	get := watching(t, env, "task", "get", "-w", "a", "-o", "name")
	want := func(next func() string, parts ...string) {
		t.Helper()
		wantParts(t, next(), parts...)
	}

	want(table, "NAME", "STATE")
	want(table, "a ", "ok")
	want(table, "b ", "ok")
	want(objects, `"name":"a"`)
	want(objects, `"name":"b"`)
	want(query, "NAME", "STATE")
	want(query, "a ", "ok")
	want(query, "b ", "ok")
	want(runs, "TASK", "RESULT")
	want(get, "a")
	want(selected, "TASK", "RESULT")

	_, err := c.Tasks.Pause(t.Context(), "default", "other", 0) // it is not watched
	must(t, err)
	_, err = c.Tasks.Pause(t.Context(), "default", "a", 0)
	must(t, err)
	want(table, "a ", "paused")
	want(query, "a ", "paused")
	want(objects, `"name":"a"`, `"paused":true`)
	want(get, "a")

	_, err = c.Tasks.Trigger(t.Context(), "default", "other", nil) // its labels do not match -l
	must(t, err)
	want(runs, "other ", "queued")
	_, err = c.Tasks.Trigger(t.Context(), "default", "b", nil)
	must(t, err)
	want(table, "b ", "waiting")
	want(query, "b ", "waiting")
	want(objects, `"name":"b"`, `"state":"waiting"`)
	want(runs, "b ", "queued")
	want(selected, "b ", "queued")

	_, err = c.Tasks.Patch(t.Context(), "default", "b", []byte(`{"labels":{"team":"web"}}`), 0)
	must(t, err)
	want(table, "default/b", "no longer in the list")
	want(objects, `"name":"b"`, `"left_list":true`)
	// The row is current. That it does not match any more is known when the owners are asked again.
	for line := query(); !strings.Contains(line, "no longer in the list"); line = query() {
		if !strings.Contains(line, "b ") {
			t.Fatalf("%q is not about b", line)
		}
	}
	must(t, c.Tasks.Delete(t.Context(), "default", "a", 0))
	want(table, "default/a", "no longer in the list")
	want(query, "default/a", "no longer in the list")
	create("c", "data")
	want(table, "c ", "ok")
	want(query, "c ", "ok")

	join := func(name, state string) {
		t.Helper()
		_, err := etcd.Put(t.Context(), keys.Node(name), `{"instance":"i","state":"`+state+`","labels":{},"roles":[]}`)
		must(t, err)
	}

	join("n1", "ready")
	join("n2", "ready")
	nodes := watching(t, env, "node", "list", "-w", "--columns", "name,state", "--no-headers")
	one := watching(t, env, "node", "get", "n2", "-w", "-o", "jsonl")
	want(nodes, "n1", "ready")
	want(nodes, "n2", "ready")
	want(one, `"name":"n2"`)
	join("n1", "cordoned")
	want(nodes, "n1", "cordoned")
	_, err = etcd.Delete(t.Context(), keys.Node("n2"))
	must(t, err)
	want(nodes, "n2", "no longer in the list")
	want(one, `"name":"n2"`, `"left_list":true`)
}

// An alert leaves the list of open alerts when it is closed.
func TestWatch_OfAlerts(t *testing.T) {
	etcd, keys, c, env := watchedCluster(t)
	putAlert := func(a task.Alert) {
		t.Helper()
		_, err := etcd.Put(t.Context(), keys.Alert(ref("default", "sync"), task.AlertFailures), record.EncodeAlert(a))
		must(t, err)
	}

	putAlert(task.Alert{Since: task.At(time.Now())})
	next := watching(t, env, "alert", "list", "-w", "--columns", "alert,acknowledged", "--no-headers")
	wantParts(t, next(), "sync:failures", "nobody")
	_, err := c.Alerts.Acknowledge(t.Context(), "default", "sync", task.AlertFailures)
	must(t, err)
	wantParts(t, next(), "sync:failures", "user:ann")
	putAlert(task.Alert{Closed: &task.AlertClose{Why: task.AlertSucceeded}})
	wantParts(t, next(), "default/sync:failures", "no longer in the list")
}

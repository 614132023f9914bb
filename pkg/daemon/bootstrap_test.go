package daemon_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestBootstrap_LeavesTheClusterToNodesWithTheAPI starts a node without the role api on an empty etcd. It must not create
// the cluster: the admin token would be on a host that serves no API.
func TestBootstrap_LeavesTheClusterToNodesWithTheAPI(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "8")
	first := c.launchOnly("n1", "--role", "executor,scheduler")

	const waits = "waiting for a node with the role api"
	eventually(t, func() error {
		select {
		case <-first.gone:
			t.Fatalf("it has ended:\n%s", first.logs)
		default:
		}

		if !strings.Contains(first.logs.String(), waits) {
			return errors.New("the log does not say what the node waits for")
		}

		res, err := http.Get(first.url() + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()

		if body, err := io.ReadAll(res.Body); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "there is no cluster yet") {
			return errors.New("/readyz does not say it: " + string(body))
		} else if err != nil {
			return err
		}
		return nil
	})

	created, err := c.etcd.Client().Get(t.Context(), c.keys.Cluster())
	if err != nil || created.Count > 0 {
		t.Errorf("%d records of a cluster, %v", created.Count, err)
	}

	second := c.start("n2", "--role", "api")
	first.waitReady()

	if n := strings.Count(first.logs.String(), waits); n != 1 {
		t.Errorf("it says %d times that it waits, want once", n)
	}
	if _, err := os.Stat(filepath.Join(first.dir, "token")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the admin token of a node without the API: %v", err)
	}
	if _, err := os.Stat(filepath.Join(second.dir, "token")); err != nil {
		t.Error(err)
	}

	// The cluster works, and the node is recognised after a restart.
	program := spec("program", "exit 0")
	c.create("n2", program)
	c.until("n2", "program", c.trigger("n2", "program").ID, task.Succeeded)

	first.signal(syscall.SIGTERM)
	c.start("n1", "--role", "executor,scheduler")

	if n := strings.Count(first.logs.String(), waits); n > 0 {
		t.Error("it waits although there is a cluster")
	}
}

// A node whose cluster has no access records never becomes ready, and says once why.
func TestBootstrap_SaysThatThereAreNoAccessRecords(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--shards", "8")
	etcd := c.etcd.Client()
	_, _, err := store.New(etcd, kv.Direct(etcd), c.keys).Bootstrap(t.Context(), 8, time.Now(), store.OpenAccess())
	if err == nil {
		_, err = etcd.Delete(t.Context(), c.keys.Access(), clientv3.WithRange(clientv3.GetPrefixRangeEnd(c.keys.Access())))
	}
	if err != nil {
		t.Fatal(err)
	}

	n := c.launchOnly("n1")
	eventually(t, func() error {
		if logs := n.logs.String(); strings.Count(logs, "etcd has no access records") != 1 || !strings.Contains(logs, "build/dev") {
			return errors.New("the log does not say what is wrong, once:\n" + logs)
		}
		return nil
	})
}

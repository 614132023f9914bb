package daemon_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/clitest"
)

// The scripts contain commands as a user types them, which run against a real daemon.
func TestStory(t *testing.T) {
	t.Parallel() // mostly waits
	tell(t, "testdata/script")
}

// These scripts change the node, so each has its own.
func TestStory_StatesOfANode(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	tell(t, "testdata/node")
}

func tell(t *testing.T, dir string) {
	c := newCluster(t, "--shards", "8")
	p := c.start("n1")
	token, err := os.ReadFile(p.dir + "/token")
	if err != nil {
		t.Fatal(err)
	}
	clitest.Run(t, dir, func(env *testscript.Env) clitest.Server {
		return clitest.Server{URL: p.url(), Token: strings.TrimSpace(string(token))}
	}, clitest.Commands{"etcd": c.printEtcd})
}

// printEtcd implements the script command "etcd KEY". It prints the value of a key or, for a key that ends in /,
// all keys and values below it. It fails if a value is not JSON.
func (c *cluster) printEtcd(ts *testscript.TestScript, neg bool, args []string) {
	var opts []clientv3.OpOption
	if len(args) != 1 {
		ts.Fatalf("usage: etcd KEY")
	}
	if strings.HasSuffix(args[0], "/") {
		opts = append(opts, clientv3.WithPrefix())
	}
	res, err := c.etcd.Client().Get(context.WithoutCancel(c.t.Context()), args[0], opts...)
	if err != nil {
		ts.Fatalf("etcd: %v", err)
	}
	for _, kv := range res.Kvs {
		if !json.Valid(kv.Value) && !strings.HasPrefix(string(kv.Key), "/carillon/leader/") {
			ts.Fatalf("%s holds no JSON: %q", kv.Key, kv.Value)
		}
		ts.Stdout().Write([]byte(string(kv.Key) + "\n" + string(kv.Value) + "\n"))
	}
	if (len(res.Kvs) == 0) != neg {
		ts.Fatalf("%d keys at %s", len(res.Kvs), args[0])
	}
}

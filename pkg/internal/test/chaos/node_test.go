package chaos_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/task"
)

// node is a daemon that the world can start, stop and inject faults into.
type node struct {
	name    string
	address string
	metrics string // the address of its metrics
	dir     string
	control string // a file
	log     string
	argv    []string
	links   []*link // to each member of etcd
	process *process
	client  *client.Client

	settings   control
	counts     counts // of this process and the previous ones
	goroutines int    // when it was last read
	idle       int    // goroutines before there was any load
	exits      bool   // it is intentionally stopped
	busy       bool   // a fault affects it
	frozenLong bool   // it was frozen for so long that its guardian may kill it
}

const (
	leaseTTL  = 3 * time.Second
	lostAfter = 13 * time.Second // the minimum for that lease
)

// addNode creates a node. startNode starts its daemon.
func (w *world) addNode(i int) (*node, error) {
	name := fmt.Sprintf("n%d", i)
	n := &node{name: name, address: w.ip(10+i) + ":7070", metrics: w.ip(10+i) + ":7071", dir: filepath.Join(w.dir, name),
		control: filepath.Join(w.dir, name+".control"), log: filepath.Join(w.logs, name+".log")}
	var endpoints []string
	for j, m := range w.members {
		at := fmt.Sprintf("%s:%d", w.ip(10+i), 2379+j)
		k, err := openLink(at, m.client, "")
		if err != nil {
			return nil, err
		}

		w.links, n.links = append(w.links, k), append(n.links, k)
		endpoints = append(endpoints, "http://"+at)
	}

	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}

	// HTTP tasks may call the target, although it is on the loopback interface.
	config := filepath.Join(w.dir, name+".yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "http_allow: [%q]\n", w.target.address), 0o600); err != nil {
		return nil, err
	}

	n.argv = []string{exe, "agent", "--config", config, "--name", name, "--data-dir", n.dir, "--listen", n.address, "--metrics-listen", n.metrics, "--etcd-endpoints", strings.Join(endpoints, ","),
		"--shards", fmt.Sprint(w.shards), "--lease-ttl", leaseTTL.String(), "--drain-timeout", "3s",
		"--slots", "64", "--spool-limit", "65536",
		"--default-user", strconv.Itoa(os.Getuid())} // the tasks write into this user's directories
	w.nodes = append(w.nodes, n)

	return n, n.settings.write(n.control)
}

// startNode starts a node's daemon, possibly again. It does not wait until the daemon is ready.
func (w *world) startNode(n *node) (err error) {
	if n.process.running() {
		return nil
	}

	n.counts.settle()
	n.exits = false

	env := w.environ(asDaemon+"="+n.control, "GORACE=halt_on_error=1 atexit_sleep_ms=0") // otherwise the race detector waits for a second at each exit
	if w.mutant != "" {
		env = append(env, mutant.Variable+"="+w.mutant)
	}

	n.process, err = launch(n.log, env, n.argv...)

	return err
}

// stopNode ends a node's daemon with a signal.
func (w *world) stopNode(n *node, s syscall.Signal) error {
	w.scrape(n)
	n.exits = true
	return n.process.end(s, w.promised(30*time.Second))
}

func (n *node) ready() error {
	if !n.process.running() {
		return fmt.Errorf("%s has ended", n.name)
	}

	c := http.Client{Timeout: time.Second}
	res, err := c.Get("http://" + n.address + "/readyz")
	if err != nil {
		return err
	}

	res.Body.Close()

	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", n.name, res.Status)
	}

	return nil
}

// set changes the environment of the daemon.
func (n *node) set(change func(*control)) error {
	change(&n.settings)
	return n.settings.write(n.control)
}

// setLinkFault sets the fault of all its links to etcd.
func (n *node) setLinkFault(w linkFault) {
	for _, k := range n.links {
		k.set("", w)
	}
}

// token returns the cluster's admin token, which its first node has written.
func (w *world) token() (string, error) {
	for _, n := range w.nodes {
		if b, err := os.ReadFile(filepath.Join(n.dir, "token")); err == nil {
			return strings.TrimSpace(string(b)), nil
		}
	}

	return "", errors.New("no node has the cluster's token")
}

// connect creates the clients of the nodes' APIs.
func (w *world) connect() error {
	token, err := w.token()
	if err != nil {
		return err
	}

	for _, n := range w.nodes {
		n.client, err = client.New(client.Config{Server: "http://" + n.address, Token: token, Timeout: 8 * time.Second})
		if err != nil {
			return err
		}
	}

	return nil
}

// setLostAfter shortens the time after which the attempts of a silent node are declared lost.
func (w *world) setLostAfter() error {
	d := task.Duration(lostAfter)
	_, err := w.nodes[0].client.Cluster.UpdateSettings(w.t.Context(), client.ClusterSettings{LostAfter: &d})
	return err
}

// up returns the nodes whose daemon runs and is intended to run.
func (w *world) up() (up []*node) {
	for _, n := range w.nodes {
		if n.process.running() && !n.exits {
			up = append(up, n)
		}
	}

	return up
}

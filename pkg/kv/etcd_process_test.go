package kv_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// etcdOwner in the environment makes TestProcess_StopsWhenItsTestIsKilled the process that is killed.
const etcdOwner = "CARILLON_TEST_ETCD_OWNER"

// A test that is killed, for example by its timeout, leaves no etcd behind.
func TestProcess_StopsWhenItsTestIsKilled(t *testing.T) {
	if dir := os.Getenv(etcdOwner); dir != "" {
		p, err := kvtest.Launch(dir, 0)
		if err != nil {
			t.Fatal(err)
		}

		fmt.Println("endpoint", p.Endpoint())
		time.Sleep(time.Minute) // until it is killed
	}

	t.Parallel()
	owner := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	owner.Env = append(os.Environ(), etcdOwner+"="+t.TempDir())
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}

	line, _ := bufio.NewReader(stdout).ReadString('\n')
	_ = owner.Process.Kill()
	_ = owner.Wait()

	socket, ok := strings.CutPrefix(strings.TrimSpace(line), "endpoint unix://")
	if !ok {
		t.Fatalf("the process wrote %q", line)
	}

	eventually(t, "the end of etcd", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}

		return err != nil
	})
}

package daemon_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// canary is a value that may be only in one process's environment, and its encoded forms.
type canary struct {
	value   string
	needles [][]byte
}

func newCanary() canary {
	c := canary{value: "canary" + task.NewUID() + task.NewUID()}
	c.needles = [][]byte{[]byte(c.value), []byte(hex.EncodeToString([]byte(c.value)))}
	for skip := range 3 { // its base64 at each position in a longer value
		part := []byte(c.value)[skip:]
		c.needles = append(c.needles, []byte(base64.StdEncoding.EncodeToString(part[:len(part)/3*3])))
	}
	return c
}

func (c canary) in(b []byte) bool {
	for _, n := range c.needles {
		if bytes.Contains(b, n) {
			return true
		}
	}
	return false
}

// sum returns the hash with which a task compares the value, so that the task does not contain it.
func (c canary) sum() string {
	s := sha256.Sum256([]byte(c.value))
	return hex.EncodeToString(s[:])
}

// canarySite is a cluster with canaries in a secret and in a file.
type canarySite struct {
	*cluster
	secret, file canary
	said         bytes.Buffer // the output of all commands
}

func (s *canarySite) nowhere(where string, b []byte) {
	s.t.Helper()
	if s.secret.in(b) || s.file.in(b) {
		s.t.Errorf("a secret's value is in %s", where)
	}
}

// carillon runs a command and stores its output.
func (s *canarySite) carillon(stdin string, args ...string) int {
	env := map[string]string{"CARILLON_SERVER": s.nodes["n1"].url(), "CARILLON_TOKEN_FILE": filepath.Join(s.nodes["n1"].dir, "token"), "HOME": s.dir}
	return cli.Main(s.t.Context(), args, cli.IO{In: strings.NewReader(stdin), Out: &s.said, Err: &s.said, Env: func(k string) string { return env[k] }})
}

func (s *canarySite) must(stdin string, args ...string) {
	s.t.Helper()
	if code := s.carillon(stdin, args...); code != 0 {
		s.t.Fatalf("%q: exit %d:\n%s", args, code, s.said.String())
	}
}

// TestCanary_IsNowhereButInItsProcess tests that a value is not in any revision of etcd, in logs, the API, the
// history, files of the nodes, command lines, or other processes, also when attempts fail and when a daemon is
// killed.
func TestCanary_IsNowhereButInItsProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only a daemon that is root may hold keys and run tasks")
	}
	admin := t.TempDir()
	keys := secret.KeyFile(filepath.Join(admin, "keys"))
	if _, _, err := keys.New(false); err != nil {
		t.Fatal(err)
	}
	s := &canarySite{cluster: newCluster(t, "--shards", "8", "--lease-ttl", "3s", "--log-level", "debug", "--secret-keys", string(keys)), secret: newCanary(), file: newCanary()}
	s.start("n1")
	s.start("n2")
	env, broken := filepath.Join(admin, "app.env"), filepath.Join(admin, "broken.env")
	for path, text := range map[string]string{env: "TOKEN='" + s.file.value + "'\n", broken: "A=1\n" + s.file.value + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.must(s.secret.value+"\n", "secret", "set", "db", "password", "-v")
	s.must("OTHER=other\n", "secret", "set", "db", "--env-file", "-", "-v", "-o", "json")
	s.fails()
	marks := t.TempDir()
	good := spec("good", fmt.Sprintf(`is() { test "$(printf %%s "$1" | sha256sum | cut -d' ' -f1)" = $2; }; is "$PGPASSWORD" %s && is "$TOKEN" %s || exit 9
unset PGPASSWORD TOKEN; echo $$ > %s/pid.$CARILLON_ATTEMPT; while [ ! -e %s/go.$CARILLON_ATTEMPT ]; do sleep 0.05; done; env; head -c 20000 /dev/zero`, s.secret.sum(), s.file.sum(), marks, marks))
	good.Action.Process.EnvFrom = []task.EnvFrom{{Secret: "db", Keys: map[string]string{"password": "PGPASSWORD"}}, {File: env}}
	good.Retry = task.Retry{Attempts: 2, Factor: 1, On: []task.State{task.Lost}}
	s.create("n1", good)
	for name, from := range map[string]task.EnvFrom{"broken": {File: broken}, "nokey": {Secret: "db", Keys: map[string]string{"user": "U"}}, "nosecret": {Secret: "none"}, "nodir": {Secret: "db"}, "notprogram": {File: env}} {
		bad := spec(name, "exit 0")
		bad.Action.Process.EnvFrom, bad.Retry.Attempts = []task.EnvFrom{from}, 2
		switch name {
		case "nodir":
			bad.Action.Process.Dir = "/no/such/directory"
		case "notprogram":
			bad.Action.Process.Shell, bad.Action.Process.Command = "", []string{"/no/such/program"}
		}
		bad.Retry.Backoff = 0
		s.create("n1", bad)
		r := s.until("n1", name, s.trigger("n1", name).ID, task.Failed)
		if want := map[string]string{"nodir": task.ReasonStart, "notprogram": task.ReasonStart}[name]; want == "" && r.Reason != task.ReasonSecret || want != "" && r.Reason != want {
			t.Errorf("%s failed for %s: %s", name, r.Reason, r.Message)
		}
		if len(r.Attempts) != 1 {
			t.Errorf("%s was not tried again by its policy: %+v", name, r)
		}
	}
	run := s.trigger("n1", "good")
	pid := pidIn(t, marks+"/pid.1")
	owner := s.until("n1", "good", run.ID, task.Running).Node
	s.search(pid)
	s.nodes[owner].signal(syscall.SIGKILL) // its guardian kills running attempts, and reads environments for that
	s.start(owner)
	pid = pidIn(t, marks+"/pid.2")
	s.search(pid)
	if err := os.WriteFile(marks+"/go.2", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("n1", "good", run.ID, task.Succeeded)
	eventually(t, func() error {
		if list, _ := filepath.Glob(s.dir + "/*/spool/default/good/*.zst"); len(list) == 0 {
			return errors.New("its output is not compressed")
		}
		return nil
	})
	s.must("", "secret", "rotate", "--all", "-A")
	s.must("", "secret", "delete", "db")
	s.search(0)
	s.judge(check.Options{})
}

// fails writes secrets in ways that are rejected.
func (s *canarySite) fails() {
	for _, args := range [][]string{
		{"secret", "set", "db", "a=" + s.secret.value}, {"secret", "set", "db", "a", "b"}, {"secret", "set", "NO", "a"},
	} {
		if code := s.carillon(s.secret.value, args...); code == 0 {
			s.t.Errorf("%d words: the command succeeded", len(args))
		}
	}
	token, err := os.ReadFile(filepath.Join(s.nodes["n1"].dir, "token"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, body := range []string{
		`{"values": {"a": ["` + s.secret.value + `"]}}`, `{"` + s.secret.value + `": 1}`, `{"values": {"a": "` + s.secret.value + `"`, `"` + s.secret.value + `"`,
		`{"values": {"a": "` + s.secret.value + `\u0000"}}`, `{"values": {"a-": "` + s.secret.value + `"}}`,
	} {
		req, _ := http.NewRequestWithContext(s.t.Context(), http.MethodPut, s.nodes["n2"].url()+"/v1/namespaces/default/secrets/bad", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode/100 != 4 {
			s.t.Errorf("%s for a bad body", res.Status)
		}
		s.nowhere("an answer that refuses it", b)
	}
}

// search looks for the values everywhere while the attempt's process may have them.
func (s *canarySite) search(pid int) {
	s.t.Helper()
	if err := s.recorder.CatchUp(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	events := s.recorder.Events()
	if len(events) < 20 {
		s.t.Fatalf("%d revisions of etcd are no history", len(events))
	}
	for _, e := range events {
		s.nowhere("etcd, at "+e.Key, e.Value)
		s.nowhere("the keys of etcd", []byte(e.Key))
		var r struct {
			Sealed []byte `json:"sealed"`
		}
		if json.Unmarshal(e.Value, &r) == nil {
			s.nowhere("what is sealed at "+e.Key, r.Sealed)
		}
	}
	for name, p := range s.nodes {
		s.nowhere("the log of "+name, []byte(p.logs.String()))
	}
	s.searchFiles(s.dir)
	s.searchAPI(pid == 0)
	eventually(s.t, s.guarded)
	s.searchProcesses(pid)
	if pid != 0 {
		return
	}
	for _, args := range [][]string{
		{"task", "get", "good"}, {"task", "get", "good", "-o", "json"}, {"task", "export"}, {"run", "list", "-o", "json", "-v"}, {"run", "get", "good", "-v"}, {"run", "get", "broken"},
		{"why", "broken"}, {"why", "good", "-o", "json"}, {"events", "-A", "-o", "json"}, {"secret", "list", "-o", "yaml"}, {"secret", "get", "db", "-v"}, {"logs", "good"}, {"task", "history", "nokey", "-o", "json"},
		{"task", "update", "good", "--dry-run", "--env", "A=b"},
	} {
		s.carillon("", args...)
	}
	s.nowhere("what commands print", s.said.Bytes())
}

func (s *canarySite) searchFiles(dir string) {
	s.t.Helper()
	unpacked, err := zstd.NewReader(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer unpacked.Close()
	n := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it was removed meanwhile
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		n++
		s.nowhere(path, b)
		if strings.HasSuffix(path, ".zst") {
			text, err := unpacked.DecodeAll(b, nil)
			if err != nil || len(text) == 0 {
				s.t.Errorf("%s: %d bytes, %v", path, len(text), err)
			}
			s.nowhere(path+", unpacked", text)
		}
		return nil
	})
	if err != nil || n < 4 {
		s.t.Errorf("%d files of the nodes, %v", n, err)
	}
}

func (s *canarySite) searchAPI(last bool) {
	s.t.Helper()
	token, err := os.ReadFile(filepath.Join(s.nodes["n1"].dir, "token"))
	if err != nil {
		s.t.Fatal(err)
	}
	const ns = "/v1/namespaces/default"
	for name := range s.nodes {
		runs, err := s.client(name).Runs.List(s.t.Context(), client.RunListOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		paths := []string{"/v1/tasks?recent=5", "/v1/runs", "/v1/runs?dead=true", "/v1/nodes", "/v1/nodes/n1", "/v1/shards", "/v1/cluster", "/v1/board", "/v1/secrets", "/metrics",
			ns + "/secrets", ns + "/secrets/db", ns + "/tasks/good", ns + "/tasks/good/keys", ns + "/tasks/good/versions", ns + "/tasks/good/why", ns + "/tasks/broken/why"}
		for _, r := range runs {
			paths = append(paths, ns+"/tasks/"+r.Task+"/runs/"+r.ID, ns+"/tasks/"+r.Task+"/runs/"+r.ID+"/logs")
		}
		if last && name == "n1" { // slow, so only once
			paths = append(paths, "/v1/events", "/openapi.json")
		}
		for _, path := range paths {
			req, _ := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.nodes[name].url()+path, nil)
			req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				s.t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			s.nowhere("the answer to "+path, b)
			s.nowhere("the headers of "+path, fmt.Append(nil, res.Header))
		}
	}
}

// searchProcesses reads the command lines of all processes, and the environments of all except those that the
// attempt has started. It reads the memory of the guardians, because the daemons send messages to them.
func (s *canarySite) searchProcesses(pid int) {
	s.t.Helper()
	procs, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Fatal(err)
	}
	guardians, has := 0, false
	for _, d := range procs {
		id, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		s.nowhere("the command line of a process", line)
		env, _ := os.ReadFile("/proc/" + d.Name() + "/environ")
		own := bytes.Contains(env, []byte("CARILLON_RUN_ID="))
		if has = has || id == pid && s.secret.in(env) && s.file.in(env); !own {
			s.nowhere("the environment of "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))), env)
		}
		if bytes.Contains(line, []byte("guardian")) && s.isOurs(env) {
			if guardians++; pid != 0 { // it has not read environments yet
				s.searchMemory(id)
			}
		}
	}
	if guardians < len(s.nodes) {
		s.t.Errorf("%d guardians of %d nodes were found", guardians, len(s.nodes))
	}
	if pid != 0 && !has {
		s.t.Error("the values are not in the process's environment, where they would be found: the search finds nothing")
	}
}

// guarded returns an error until every node has its guardian. A restarted node may be ready before that.
func (s *canarySite) guarded() error {
	guardians := 0
	err := eachProcess(func(_, dir string) error {
		line, _ := os.ReadFile(dir + "/cmdline")
		env, _ := os.ReadFile(dir + "/environ")
		if bytes.Contains(line, []byte("guardian")) && s.isOurs(env) {
			guardians++
		}
		return nil
	})
	if err == nil && guardians < len(s.nodes) {
		err = fmt.Errorf("%d guardians of %d nodes were found", guardians, len(s.nodes))
	}
	return err
}

// isOurs reports whether a daemon of this test started a process.
func (s *canarySite) isOurs(env []byte) bool { return bytes.Contains(env, []byte(s.dir)) }

func (s *canarySite) searchMemory(pid int) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return // the process has ended
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if errors.Is(err, fs.ErrPermission) || err != nil {
		return // this user may not trace it
	}
	defer mem.Close()
	found := false // messages that the guardian has received are found, too
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > 64<<20 {
			continue
		}
		for _, r := range inMemory(pid, from, to) {
			b := make([]byte, r.to-r.from)
			n, _ := mem.ReadAt(b, r.from)
			s.nowhere("the memory of a guardian", b[:n])
			// The environment on the stack contains the directory in any case.
			found = found || !strings.Contains(line, "[stack]") && bytes.Contains(b[:n], []byte(s.dir))
		}
	}
	after, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if !found && err == nil && len(after) > 0 { // it has not ended meanwhile
		s.t.Error("the directory of a guardian's daemon is not in its memory: the search finds nothing")
	}
}

// addressRange is a range of addresses from from up to, but not including, to.
type addressRange struct{ from, to int64 }

// inMemory returns the parts of a mapping that the process has ever used. With the race detector, that is a small
// part of what is mapped.
func inMemory(pid int, from, to int64) (used []addressRange) {
	page := int64(os.Getpagesize())
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return []addressRange{{from, to}}
	}
	defer f.Close()
	entries := make([]byte, (to-from)/page*8)
	if _, err := f.ReadAt(entries, from/page*8); err != nil {
		return []addressRange{{from, to}}
	}
	const presentOrSwapped = 3 << 62
	for at := from; at < to; at += page {
		if binary.NativeEndian.Uint64(entries[(at-from)/page*8:])&presentOrSwapped == 0 {
			continue
		}
		if last := len(used) - 1; last >= 0 && used[last].to == at {
			used[last].to += page
		} else {
			used = append(used, addressRange{at, at + page})
		}
	}
	return used
}

// TestPolicy_OfANodeIsStrongerThanAnyTask runs real daemons. One does not start with a policy that others may
// change, and one gets no runs while its file is broken.
func TestPolicy_OfANodeIsStrongerThanAnyTask(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("shell: false\nexecutables: [/bin/true, /usr/bin/true]\n")
	c := newCluster(t, "--shards", "8", "--policy", path)
	if os.Geteuid() != 0 { // without root, tasks could do what it forbids
		p := c.launchOnly("n1")
		<-p.gone
		if !strings.Contains(p.logs.String(), "run the daemon as root") {
			t.Errorf("it said:\n%s", p.logs)
		}
		return
	}
	c.start("n1")
	shell, program, other := spec("shell", "exit 0"), spec("program", ""), spec("other", "")
	program.Action.Process.Command, other.Action.Process.Command = []string{"true"}, []string{"/bin/sh", "-c", "exit 0"}
	for _, s := range []task.Spec{shell, program, other} {
		c.create("n1", s)
	}
	for name, want := range map[string]string{"shell": "the node's policy: shell: ", "other": "the node's policy: executables: "} {
		r := c.until("n1", name, c.trigger("n1", name).ID, task.Failed)
		if r.Reason != task.ReasonPolicy || !strings.Contains(r.Message, want) {
			t.Errorf("%s: %s, %s", name, r.Reason, r.Message)
		}
		a, err := c.client("n1").Tasks.Why(t.Context(), "default", name, client.WhyQuestion{})
		if b, _ := json.Marshal(a); err != nil || !strings.Contains(string(b), want) || !strings.Contains(string(b), "the policy of its node does not allow it") {
			t.Errorf("why does not tell it: %s, %v", b, err)
		}
	}
	c.until("n1", "program", c.trigger("n1", "program").ID, task.Succeeded)
	put("shell: maybe\n")
	eventually(t, func() error {
		n, err := c.client("n1").Nodes.Get(t.Context(), "n1")
		if err == nil && !slices.Equal(n.Blocked, []string{task.BlockedByPolicy}) {
			err = fmt.Errorf("it takes runs: %v", n.Blocked)
		}
		return err
	})
	waits := c.trigger("n1", "program").ID
	eventually(t, func() error {
		a, err := c.client("n1").Tasks.Why(t.Context(), "default", "program", client.WhyQuestion{})
		if b, _ := json.Marshal(a); err == nil && !strings.Contains(string(b), "n1 accepts no runs: its policy cannot be read") {
			err = fmt.Errorf("why does not tell it: %s", b)
		}
		return err
	})
	eventually(t, func() error {
		if !strings.Contains(c.nodes["n1"].logs.String(), "this node starts no runs") {
			return errors.New("it does not say that its policy is broken")
		}
		return nil
	})
	put("shell: true\n")
	c.until("n1", "program", waits, task.Succeeded)
	c.until("n1", "shell", c.trigger("n1", "shell").ID, task.Succeeded)
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// step is a command on a page, as a user types it, and the exit code that the page states.
type step struct {
	line    int
	command string
	code    int
}

// steps returns the commands in a page's console blocks: the text after "$ ", and its input up to END.
func steps(page string) []step {
	var all []step
	block, here := false, false
	for i, line := range strings.Split(page, "\n") {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			block, here = line == "```console", false
		case here:
			all[len(all)-1].command += "\n" + line
			here = line != "END"
		case !block:
		case typed && command != "echo $?":
			all = append(all, step{line: i + 1, command: command})
			here = strings.HasSuffix(command, "<<'END'")
		case typed:
		case len(all) > 0:
			if n, err := strconv.Atoi(line); err == nil {
				all[len(all)-1].code = n
			}
		}
	}

	return all
}

// TestTutorial_EveryCommandWorks runs the commands of the page, in their order.
func TestTutorial_EveryCommandWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole daemon: make test-cluster")
	}

	t.Parallel() // it waits most of the time
	dir := t.TempDir()

	page := strings.ReplaceAll(readPage(t, "../../docs/tutorial.md"), "/tmp/carillon-tutorial", filepath.Join(dir, "tutorial"))
	if time.Now().UTC().Hour() < 6 { // at about 03:30 in Berlin the task would run on schedule, and the page's count of runs would be wrong
		page = strings.ReplaceAll(page, "Europe/Berlin", "Asia/Tokyo")
	}

	list := steps(page)
	if len(list) < 20 || list[0].command != "carillon dev" {
		t.Fatalf("%d commands, the first is %+v", len(list), list[0])
	}

	runSteps(t, dir, "docs/tutorial.md", list[1:])
}

// TestWorkflowTutorial_EveryCommandWorks runs the commands of the page, and the example with steps.
func TestWorkflowTutorial_EveryCommandWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole daemon: make test-cluster")
	}

	t.Parallel() // it waits most of the time
	dir := t.TempDir()

	list := steps(strings.ReplaceAll(readPage(t, "../../docs/tutorial-workflow.md"), "/tmp/carillon-etl", filepath.Join(dir, "etl")))
	if len(list) < 18 || list[0].command != "carillon dev" {
		t.Fatalf("%d commands, the first is %+v", len(list), list[0])
	}

	// What the page says about the retry is true.
	for i, s := range list {
		if s.command == "carillon run retry nightly-etl" {
			list[i].command += ` | tee /dev/stderr | grep -q "it repeats load, check, clean and keeps extract, 2 items of load$"`
		}
	}

	example, err := filepath.Abs("../../examples/workflow.yaml")
	if err != nil {
		t.Fatal(err)
	}
	list = append(list, step{command: "carillon apply -f " + example}, step{command: "carillon task trigger workflow --wait"},
		step{command: `carillon run get workflow | grep "3 of 3 items"`}, step{command: `carillon logs workflow --step check | grep "checking 1234 rows"`},
		step{command: "carillon logs workflow --step load/3", code: 3})

	runSteps(t, dir, "docs/tutorial-workflow.md", list[1:])
}

// TestHTTPGuide_EveryCommandWorks runs the commands of the page, with a server of the test instead of the page's.
func TestHTTPGuide_EveryCommandWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole daemon: make test-cluster")
	}

	t.Parallel() // it waits most of the time

	// Like that of Python, the server accepts only GET and HEAD.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "unsupported method", http.StatusNotImplemented)
			return
		}
		_, _ = io.WriteString(w, "a page\n")
	}))
	t.Cleanup(server.Close)

	list := steps(strings.ReplaceAll(readPage(t, "../../docs/how-to/http.md"), "http://127.0.0.1:8080", server.URL))
	if len(list) < 8 || list[0].command != "carillon dev" || !strings.HasPrefix(list[1].command, "python3 -m http.server 8080 ") {
		t.Fatalf("%d commands: %+v", len(list), list)
	}

	// The example has the same server as the page.
	dir := t.TempDir()
	example := strings.ReplaceAll(readPage(t, "../../examples/http.yaml"), "http://127.0.0.1:8080", server.URL)
	if err := os.WriteFile(filepath.Join(dir, "http.yaml"), []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}

	list = append(list[2:], step{command: "carillon apply -f http.yaml"}, step{command: "carillon task trigger http --wait"}, step{command: `carillon logs http | grep "a page"`},
		// A node for development allows loopback, but not its own ports.
		step{command: `carillon task create own --schedule @manual --http "$CARILLON_SERVER/healthz"`}, step{command: "carillon task trigger own --wait", code: 9},
		step{command: `carillon run get own | grep "never allowed"`})
	runSteps(t, dir, "docs/how-to/http.md", list)
}

// TestRecipes_EveryCommandWorks writes the files of the page, whose names are their first lines, and runs its commands.
func TestRecipes_EveryCommandWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole daemon: make test-cluster")
	}

	t.Parallel() // it waits most of the time
	dir := t.TempDir()

	page := readPage(t, "../../docs/recipes.md")
	files := 0
	for i, part := range strings.Split(page, "```yaml\n# ") {
		if i == 0 {
			continue
		}
		name, text, _ := strings.Cut(part, "\n")
		text, _, _ = strings.Cut(text, "```")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page, "$ carillon apply -f "+name) {
			t.Errorf("the page does not apply %s", name)
		}
		files++
	}

	list := steps(page)
	if files < 12 || len(list) < 2*files || list[0].command != "carillon dev" {
		t.Fatalf("%d files and %d commands, the first is %+v", files, len(list), list[0])
	}

	runSteps(t, dir, "docs/recipes.md", list[1:])
}

// TestTroubleshooting_EveryCommandWorks runs the commands that the page names, and those that the page about upgrades runs
// before an upgrade, on a node that has what they ask about.
func TestTroubleshooting_EveryCommandWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole daemon: make test-cluster")
	}

	t.Parallel() // it waits most of the time
	dir := t.TempDir()

	list := []step{
		{command: "carillon task create hello --schedule @hourly -- /bin/true"}, {command: "carillon task trigger hello --wait"},
		{command: "carillon task create gone --schedule @hourly -- /bin/true"}, {command: "carillon task delete gone --yes"},
		{command: "carillon task create cluster-backup --schedule @manual -- /bin/true"}, {command: "carillon task trigger cluster-backup --wait"},
		{command: "carillon namespace create ops"},
		{command: "carillon apply -f - <<'END'\n{name: slack, namespace: ops, receiver: {}, accept: {env: [ALERT_TEXT]}, action: {noop: {}}}\nEND"},
		{command: "carillon access grant editor user:ann -n default"},
		{command: "carillon cert ca --dir ."}, {command: "mkdir backups"}, {command: "printf 'name: x\nembedded: true\ndata_dir: %s/x\n' $PWD > agent.yaml"},
	}
	prepared := len(list)

	_, upgrade, _ := strings.Cut(readPage(t, "../../docs/how-to/upgrade.md"), "make a backup")
	upgrade, _, _ = strings.Cut(upgrade, "3. Check")
	for line := range strings.Lines(upgrade) {
		if command := strings.TrimSpace(line); strings.HasPrefix(command, "carillon ") {
			list = append(list, step{command: command})
		}
	}
	if len(list) < prepared+3 {
		t.Fatalf("%d commands before an upgrade", len(list)-prepared)
	}

	page := readPage(t, "../../docs/troubleshooting.md")
	page, _, _ = strings.Cut(page, "## Before you report")
	for i, part := range strings.Split(page, "`") { // what is between backquotes is at odd places
		command := strings.TrimPrefix(part, "sudo ")
		if i%2 == 0 || !strings.HasPrefix(command, "carillon ") || command == "carillon top" {
			continue
		}
		if strings.Contains(command, "undelete") {
			command = strings.ReplaceAll(command, "TASK", "gone")
		}
		list = append(list, step{command: command})
	}
	if len(list) < 45 {
		t.Fatalf("only %d commands", len(list))
	}

	names := strings.NewReplacer("NAMESPACE", "default", "TASK", "hello", "RUN", "hello", "/etc/carillon/", "", "/backups", "backups", "carillon schedule lint", `carillon schedule lint "30 2 * * *"`)
	for i := range list {
		list[i].command = names.Replace(list[i].command)
	}

	runSteps(t, dir, "docs/troubleshooting.md", list)
}

// TestFortyHosts_FilesAreValid runs the page's script for certificates, and checks both of its settings files with them.
func TestFortyHosts_FilesAreValid(t *testing.T) {
	dir := t.TempDir()
	page := readPage(t, "../../docs/how-to/forty-hosts.md")

	for _, name := range []string{"hosts", "certs.sh", "server.yaml", "executor.yaml"} {
		_, text, ok := strings.Cut(page, "\n# "+name+"\n")
		if !ok {
			t.Fatalf("the page has no %s", name)
		}
		text, _, _ = strings.Cut(text, "```")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "/etc/carillon/", dir+"/")), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for _, command := range []string{
		"sh -e certs.sh && test -e certs/db1.pem && test -e peer-certs/c3.pem && ! test -e peer-certs/web1.pem",
		"cp certs/ca.pem ca.pem && cp certs/carillon.pem etcd.pem && cp certs/carillon-key.pem etcd-key.pem",
		"cp certs/c1.pem node.pem && cp certs/c1-key.pem node-key.pem && carillon agent --config server.yaml --check-config",
		"cp certs/web1.pem node.pem && cp certs/web1-key.pem node-key.pem && carillon agent --config executor.yaml --check-config",
	} {
		c := exec.CommandContext(t.Context(), "bash", "-c", command)
		c.Dir = dir
		c.Env = append(os.Environ(), "HOME="+dir, "GORACE="+raceOptions)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

// readPage returns the text of a page.
func readPage(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// runSteps starts a node for development in a directory, and runs the commands of a page there.
func runSteps(t *testing.T, dir, page string, list []step) {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort())

	shell := func(command string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), "bash", "-c", command)
		c.Dir = dir
		c.Env = append(os.Environ(), "HOME="+dir, "GORACE="+raceOptions, "CARILLON_SERVER=http://"+address, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_CACHE_HOME=", "CARILLON_TOKEN=", "CARILLON_CONTEXT=", "CARILLON_CONFIG=")
		return c
	}

	node := shell("exec carillon dev --listen " + address)
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}

	defer func() { _ = node.Process.Signal(syscall.SIGINT); _ = node.Wait() }()

	if out, err := patient(shell, step{command: "carillon cluster status"}); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	for _, s := range list {
		if out, err := patient(shell, s); err != nil {
			t.Fatalf("%s:%d: %s: %v\n%s", page, s.line, s.command, err, out)
		}
	}
}

// patient repeats a command until it ends as it should. A user also waits until the first run exists.
func patient(shell func(string) *exec.Cmd, s step) (string, error) {
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		c := shell(s.command)
		out, err := c.CombinedOutput()

		if code := c.ProcessState.ExitCode(); code == s.code {
			return "", nil
		} else if err == nil {
			err = fmt.Errorf("exit code %d, want %d", code, s.code)
		}

		if time.Now().After(end) || !strings.HasPrefix(s.command, "carillon ") {
			return string(out), err
		}
	}
}

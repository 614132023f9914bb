package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// drillPatience is how long the drill waits for something that must happen.
const drillPatience = 3 * time.Minute

// drillHosts has the hosts on which each numbered step of the page is done.
var drillHosts = [][]string{{"n1"}, {"n1"}, {"n1"}, {"n1"}, {"n1", "n2"}, {"n1", "n2"}, {"n1"}}

// drill is a cluster of three agents with an embedded etcd. Each has a directory that stands for the root of its host.
type drill struct {
	*testing.T
	dir     string
	servers map[string]string // the URLs of the APIs
	agents  map[string]*exec.Cmd
	ticks   string // each run of the task adds the time of its tick to this file
}

// TestRestore_TheDrill restores a cluster of three embedded etcds with the commands of the pages about backups and restores, as an operator
// would. No tick that is due until the loss runs again.
//
// Verifies: G68
func TestRestore_TheDrill(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // it waits most of the time

	steps := numberedSteps(readPage(t, "../../docs/how-to/restore.md"), "## Restore an embedded etcd")
	if len(steps) != len(drillHosts) {
		t.Fatalf("the page has %d steps: %q", len(steps), steps)
	}

	d := newDrill(t)
	d.startCluster()

	// The page about backups makes the token, and then the backup.
	page := readPage(t, "../../docs/how-to/backup.md")
	for _, command := range numberedSteps(page, "## Make backups on a schedule")[0] {
		d.run("n1", strings.Replace(command, " -o backup ", " ", 1))
	}
	create := "carillon backup create /backups"
	if !strings.Contains(page, "\n$ "+create+"\n") {
		t.Fatalf("the page does not have %q", create)
	}
	d.awaitTicks(time.Time{}, 2)
	made := time.Now()
	out := d.run("n1", create+" --token-file /etc/carillon/backup-token")

	// This happens after the backup: a right is revoked, and ticks run.
	d.run("n1", "carillon access revoke '*backup*'")
	d.run("n1", `grep -q '"change":"read"' /etc/carillon/audit.jsonl && grep -q '"operation":"delete-binding"' /etc/carillon/audit.jsonl`)
	d.awaitTicks(made, 3)

	// Two of three hosts fail. One of them never comes back.
	d.kill("n1")
	d.kill("n3")
	lost := time.Now()
	until := lost.Truncate(time.Second).Add(time.Second).UTC()

	id := regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z`).FindString(out)
	fill := strings.NewReplacer("20261128T020000.000Z", id, "2026-11-28T09:49:58Z", until.Format(time.RFC3339))
	said := make([]string, len(steps))
	for i, step := range steps {
		for _, host := range drillHosts[i] {
			for _, command := range step {
				switch {
				case strings.HasPrefix(command, "scp ") && host != "n1":
				case command == "systemctl stop carillon":
					d.kill(host)
				case command == "systemctl start carillon":
					d.start(host)
				default:
					said[i] += d.run(host, fill.Replace(command))
				}
			}
		}
	}

	first := d.awaitTicks(until, 1)
	t.Logf("the first tick ran %s after the loss", time.Since(lost).Round(100*time.Millisecond))

	for i, want := range []string{
		`complete\s*$`, ``,
		`SHA-256 .*; as in .*/audit.jsonl(.|\n)*Valid again +binding .*: deleted on `,
		`Lost .* of 1 task until ` + until.Format(time.RFC3339) + ` will not run(.|\n)*Prepared .*/prepared.db: epoch \d+, revision \d{16}`, `Undo .*(.|\n)*Undo `, ``, `Restored .*; gap until ` + until.Format(time.RFC3339),
	} {
		if !regexp.MustCompile(want).MatchString(said[i]) {
			t.Errorf("step %d does not print %q:\n%s", i+1, want, said[i])
		}
	}

	all := d.readTicks()
	if !first.After(until) {
		t.Errorf("the first tick after the restore is %s", first)
	}
	slices.SortFunc(all, time.Time.Compare)
	for i := 1; i < len(all); i++ {
		if all[i].Equal(all[i-1]) {
			t.Errorf("the tick %s has run twice", all[i])
		}
	}
}

// numberedSteps returns the commands of the numbered steps below a heading. Those of a step without a block are in its text.
func numberedSteps(page, heading string) (steps [][]string) {
	_, section, _ := strings.Cut(page, heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	number, inline := regexp.MustCompile(`(?m)^\d+\. `), regexp.MustCompile("`((?:carillon|systemctl) [^`]*)`")

	starts := number.FindAllStringIndex(section, -1)
	for i, start := range starts {
		text := section[start[0]:]
		if i+1 < len(starts) {
			text = section[start[0]:starts[i+1][0]]
		}

		var commands []string
		if blocks := strings.Split(text, "   ```"); len(blocks) > 1 {
			for _, line := range strings.Split(strings.ReplaceAll(blocks[1], "\\\n", " "), "\n") {
				if line = strings.TrimSpace(line); line != "" {
					commands = append(commands, line)
				}
			}
		} else {
			for _, m := range inline.FindAllStringSubmatch(text, -1) {
				commands = append(commands, m[1])
			}
		}
		steps = append(steps, commands)
	}

	return steps
}

func newDrill(t *testing.T) *drill {
	t.Helper()
	dir, err := os.MkdirTemp("", "drill") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	d := &drill{T: t, dir: dir, servers: map[string]string{}, agents: map[string]*exec.Cmd{}, ticks: filepath.Join(dir, "ticks")}
	t.Cleanup(func() {
		for host := range d.agents {
			d.kill(host)
		}
		_ = os.RemoveAll(dir)
	})

	hosts := []string{"n1", "n2", "n3"}
	members := ""
	for _, host := range hosts {
		members += fmt.Sprintf("  %s: https://127.0.0.1:%d\n", host, freePort())
	}
	d.write("bin/scp", "#!/bin/sh\n# scp -r FILE HOST:DIRECTORY\ncp -r \"$2\" \"$DRILL/${3%%:*}${3#*:}\"\n")
	d.write("backups/.keep", "")
	d.write("ticks", "")
	if err := errors.Join(os.Chmod(dir, 0o711), os.Chmod(d.ticks, 0o666)); err != nil { // if root runs the test, tasks run as nobody
		t.Fatal(err)
	}
	for _, host := range hosts {
		port := freePort()
		d.servers[host] = fmt.Sprintf("http://127.0.0.1:%d", port)
		d.write(host+"/etc/carillon/agent.yaml", fmt.Sprintf("name: %s\ndata_dir: %s\nlisten: 127.0.0.1:%d\nembedded: true\nlease_ttl: 3s\nlog_level: error\naudit_file: %s\ninitial_cluster:\n%s",
			host, filepath.Join(dir, host, "var/lib/carillon"), port, filepath.Join(dir, host, "etc/carillon/audit.jsonl"), members))
		if err := os.MkdirAll(filepath.Join(dir, host, "var/lib/carillon"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(dir, "backups"), filepath.Join(dir, host, "backups")); err != nil {
			t.Fatal(err)
		}
	}

	return d
}

// write writes a file.
func (d *drill) write(name, text string) {
	d.Helper()
	path := filepath.Join(d.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o700)
	}
	if err != nil {
		d.Fatal(err)
	}
}

// startCluster starts the three agents, and a task with a tick in each second.
func (d *drill) startCluster() {
	d.Helper()
	d.start("n1")
	for _, host := range []string{"n2", "n3"} {
		peer := d.run("n1", "sed -n 's/^  "+host+": //p' /etc/carillon/agent.yaml")
		token := d.run("n1", "carillon cluster join-token "+host+" --data-dir /var/lib/carillon --peer-url "+peer)
		d.write(host+"/var/lib/carillon/join-token", token)
		d.start(host)
	}

	// The first node creates the token of an administrator. One that finds another token removes its own, so there may be two for a while.
	d.run("n1", "set -- $DRILL/n?/var/lib/carillon/token; [ $# = 1 ] && cp $1 $DRILL/admin-token && carillon node get n2 && carillon node get n3")

	// A run that n3 holds in the backup keeps its task from starting again for this time.
	d.run("n1", "carillon cluster set --lost-after 14s")
	d.run("n1", "carillon task create tick --schedule '* * * * * *' --set missed.policy=all -- sh -c 'echo $CARILLON_SCHEDULED_TIME >> "+d.ticks+"'")
}

// absolute finds the paths in a command that are on its own host.
var absolute = regexp.MustCompile(`(^|\s)(/backups|/etc/carillon|/var/lib)`)

// shell returns a command on a host.
func (d *drill) shell(host, command string) *exec.Cmd {
	c := exec.CommandContext(d.Context(), "bash", "-c", absolute.ReplaceAllString(command, "${1}"+filepath.Join(d.dir, host)+"${2}"))
	c.Dir = d.dir
	c.Env = append(os.Environ(), "HOME="+d.dir, "GORACE="+raceOptions, "DRILL="+d.dir, "PATH="+filepath.Join(d.dir, "bin")+":"+os.Getenv("PATH"),
		"CARILLON_SERVER="+d.servers[host], "CARILLON_TOKEN_FILE="+filepath.Join(d.dir, "admin-token"), "XDG_CONFIG_HOME=", "XDG_DATA_HOME=", "XDG_CACHE_HOME=",
		"CARILLON_TOKEN=", "CARILLON_CONTEXT=", "CARILLON_CONFIG=")
	return c
}

// run runs a command on a host until it succeeds, and returns what it prints. An operator also waits until the others know that they have
// lost etcd, and until the cluster is ready.
func (d *drill) run(host, command string) string {
	d.Helper()
	for end := time.Now().Add(drillPatience); ; time.Sleep(200 * time.Millisecond) {
		var out, errs strings.Builder
		c := d.shell(host, command)
		c.Stdout, c.Stderr = &out, &errs
		err := c.Run()
		if err == nil {
			return out.String()
		}
		if time.Now().After(end) {
			d.Fatalf("%s: %s: %v\n%s%s", host, command, err, out.String(), errs.String())
		}
	}
}

// start starts the agent of a host.
func (d *drill) start(host string) {
	d.Helper()
	c := d.shell(host, "exec carillon agent --config /etc/carillon/agent.yaml")
	if err := c.Start(); err != nil {
		d.Fatal(err)
	}
	d.agents[host] = c
}

// kill kills the agent of a host, if it runs.
func (d *drill) kill(host string) {
	if c := d.agents[host]; c != nil {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
		d.agents[host] = nil
	}
}

// readTicks returns the times of the ticks that have run.
func (d *drill) readTicks() (list []time.Time) {
	d.Helper()
	text, err := os.ReadFile(d.ticks)
	if err != nil {
		d.Fatal(err)
	}
	for _, line := range strings.Fields(string(text)) {
		if at, err := time.Parse(time.RFC3339, line); err == nil {
			list = append(list, at)
		}
	}

	return list
}

// awaitTicks waits until some ticks have run that are later than a time, and returns the first of them.
func (d *drill) awaitTicks(after time.Time, n int) time.Time {
	d.Helper()
	for end := time.Now().Add(drillPatience); ; time.Sleep(50 * time.Millisecond) {
		list := slices.DeleteFunc(d.readTicks(), func(at time.Time) bool { return !at.After(after) })
		if len(list) >= n {
			return list[0]
		}
		if time.Now().After(end) {
			d.Fatalf("%d of %d ticks have run after %s", len(list), n, after)
		}
	}
}

package task_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const confinedTask = `{"name": "job", "schedule": "@manual", "action": {"process": {"shell": "true", `

func TestProcess_ReadsConfinement(t *testing.T) {
	t.Parallel()
	s, err := task.DecodeSpec([]byte(confinedTask + `"group": "adm", "groups": [], "umask": "027", "nice": -5, "ionice": "best-effort/7",
		"no_new_privs": true, "private_tmp": true, "scratch": true, "enforce": "report", "dir": "/tmp",
		"limits": {"open_files": 64, "file_size": "1Mi", "core": 0, "processes": 9, "stack": "8Mi", "address_space": 1073741824, "cpu_time": "1m",
			"memory": "1.5Gi", "swap": "0", "cpu": 1.5, "pids": 20}}}}`))
	if err != nil {
		t.Fatal(err)
	}

	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}

	none, mega := task.Size(0), task.Size(1<<20)
	want := task.Process{Shell: "true", Dir: "/tmp", Group: "adm", Groups: []string{}, Umask: "027", Nice: -5, IONice: "best-effort/7",
		NoNewPrivs: true, PrivateTmp: true, Scratch: true, Enforce: task.EnforceReport,
		Limits: task.Limits{OpenFiles: 64, FileSize: &mega, Core: &none, Processes: 9, Stack: 8 << 20, AddressSpace: 1 << 30,
			CPUTime: task.Duration(time.Minute), Memory: 3 << 29, Swap: &none, CPU: 1.5, PIDs: 20}}
	if !reflect.DeepEqual(*s.Action.Process, want) {
		t.Errorf("got  %+v\nwant %+v", *s.Action.Process, want)
	}

	if none, err := task.DecodeSpec([]byte(confinedTask + `"limits": {"memory": null, "core": "0", "swap": null}}}}`)); err != nil || none.Validate() != nil {
		t.Errorf("null says nothing, and 0 of some is a limit: %v, %v", err, none.Validate())
	}

	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}

	if again, err := task.DecodeSpec(b); err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("%s is read again as %+v, %v", b, again.Action.Process, err)
	}
}

func TestProcess_RefusesConfinement(t *testing.T) {
	t.Parallel()

	for fields, want := range map[string]string{
		`"group": "a b"`:                       `action.process.group: "a b" is not the name of a group`,
		`"groups": [""]`:                       `action.process.groups[0]: must not be empty`,
		`"groups": ["a", "a"]`:                 `action.process.groups[1]: "a" is given twice`,
		`"groups": ["a:"]`:                     `action.process.groups[0]: "a:" is not the name of a group`,
		`"umask": "8"`:                         `action.process.umask: "8" is not a umask`,
		`"umask": "1777"`:                      `action.process.umask: "1777" is not a umask`,
		`"umask": 27`:                          `action.process.umask: 27 is not a string`,
		`"nice": 20`:                           `action.process.nice: 20 is not between -20 and 19`,
		`"nice": -21`:                          `action.process.nice: -21 is not between`,
		`"ionice": "idle/3"`:                   `action.process.ionice: "idle/3" is not idle`,
		`"ionice": "best-effort/8"`:            `action.process.ionice`,
		`"ionice": "realtime/"`:                `action.process.ionice`,
		`"ionice": "none"`:                     `action.process.ionice`,
		`"enforce": "maybe"`:                   `action.process.enforce`,
		`"private_tmp": true, "dir": "/tmp/x"`: `action.process.dir: "/tmp/x" does not exist: with private_tmp, /tmp is empty`,
		`"scratch": 1`:                         `action.process.scratch: 1 is not true or false`,
		`"limits": {"open_files": 7}`:          `action.process.limits.open_files: 7 is not between 8`,
		`"limits": {"open_files": -1}`:         `action.process.limits.open_files: -1`,
		`"limits": {"file_size": "big"}`:       `action.process.limits.file_size: "big" is not a number of bytes`,
		`"limits": {"core": -1}`:               `action.process.limits.core: "-1" is not a number of bytes`,
		`"limits": {"core": "2048T"}`:          `action.process.limits.core`,
		`"limits": {"core": true}`:             `action.process.limits.core: true is not a string`,
		`"limits": {"processes": 9999999}`:     `action.process.limits.processes: 9999999 is not between 1`,
		`"limits": {"stack": 1}`:               `action.process.limits.stack: 1 is not between 64Ki`,
		`"limits": {"address_space": "1Ki"}`:   `action.process.limits.address_space: 1Ki is not between 1Mi`,
		`"limits": {"cpu_time": "1500ms"}`:     `action.process.limits.cpu_time: 1.5s is not a whole number of seconds, as the kernel requires`,
		`"limits": {"cpu_time": "-1s"}`:        `action.process.limits.cpu_time: -1s is not between 1s`,
		`"limits": {"memory": "0"}`:            `action.process.limits.memory: 0 is not a limit`,
		`"limits": {"memory": 0}`:              `action.process.limits.memory: 0 is not a limit`,
		`"limits": {"cpu": 0}`:                 `action.process.limits.cpu: 0 is not a limit`,
		`"limits": {"cpu_time": "0s"}`:         `action.process.limits.cpu_time: 0 is not a limit`,
		`"limits": {"pids": 0}`:                `action.process.limits.pids: 0 is not a limit`,
		`"limits": {"core": 1.5}`:              `action.process.limits.core: "1.5" is not a whole number of bytes`,
		`"limits": {"memory": "1k"}`:           `action.process.limits.memory: 1k is not between 1Mi`,
		`"limits": {"swap": "1Gi"}`:            `action.process.limits.swap: requires limits.memory`,
		`"limits": {"cpu": 0.001}`:             `action.process.limits.cpu: 0.001 is not between 0.01 and 4096`,
		`"limits": {"pids": -3}`:               `action.process.limits.pids: -3`,
		`"limits": {"file": 3}`:                `action.process.limits.file: is not a field`,
	} {
		s, err := task.DecodeSpec([]byte(confinedTask + fields + `}}}`))
		if err == nil {
			err = s.Validate()
		}

		if !errors.Is(err, task.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", fields, err, want)
		}
	}
}

func TestDifferences_ShowsLimits(t *testing.T) {
	t.Parallel()
	a := task.Spec{Action: task.Action{Process: &task.Process{Shell: "x"}}}
	b := task.Spec{Action: task.Action{Process: &task.Process{Shell: "x", Limits: task.Limits{Memory: 1 << 30}, Groups: []string{}}}}

	got := strings.Join(task.Differences(a, b), "; ")
	if want := "action.process.groups: none → []; action.process.limits.memory: none → 1Gi"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestParseIONice_HasClassAndLevel(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]task.IONice{
		"": {}, "idle": {Class: 3}, "best-effort": {2, 4}, "best-effort/0": {Class: 2}, "realtime/7": {1, 7},
	} {
		if got, err := task.ParseIONice("", text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}

	for text, want := range map[string]int{"": -1, "0": 0, "022": 0o22, "777": 0o777, "0027": 0o27} {
		if got, err := task.ParseUmask("", text); err != nil || got != want {
			t.Errorf("umask %q is %o, %v; want %o", text, got, err, want)
		}
	}
}

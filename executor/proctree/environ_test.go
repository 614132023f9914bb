package proctree

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// In the middle of an execve, the kernel shows an empty environment. A process that is seen then must not look as if it had none.
func TestReadEnviron_InAnExecve(t *testing.T) {
	const env = EnvRunID + "=r1\x00" + EnvToken + "=7\x00"

	for name, c := range map[string]struct {
		ends  []string // env_end of the process, before each wait
		flags int
		last  string // the environment that is there in the end
		waits int
		want  string
	}{
		"it has executed its program":    {ends: []string{"140724"}, last: env, want: env},
		"its environment is empty":       {ends: []string{"140724"}},
		"an execve ends":                 {ends: []string{"0", "0", "140724"}, last: env, waits: 2, want: env},
		"an execve without environment":  {ends: []string{"0", "140724"}, waits: 1},
		"an execve does not end":         {ends: []string{"0", "0", "0"}, waits: 3},
		"a kernel thread":                {ends: []string{"0"}, flags: kernelThread},
		"a process that ends":            {ends: []string{"0"}, flags: exiting},
		"a kernel that does not show it": {ends: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, waits := t.TempDir(), 0

			show := func() {
				end := c.ends[min(waits, len(c.ends)-1)]
				fields := []string{"S", "1", "7", "7", "0", "-1", fmt.Sprint(c.flags)}
				for len(fields) < 48 {
					fields = append(fields, "0")
				}
				if end != "" {
					fields = append(fields, end, "0")
				}
				write(t, dir, "stat", "7 (a ) b) "+strings.Join(fields, " "))

				shown := ""
				if waits >= len(c.ends)-1 {
					shown = c.last
				}
				write(t, dir, "environ", shown)
			}

			show()
			got := readEnviron(dir, func() bool { waits++; show(); return waits < 3 })
			if string(got) != c.want || waits != c.waits {
				t.Errorf("%q after %d waits, want %q after %d", got, waits, c.want, c.waits)
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A process that executes one program after the other is found each time.
func TestKillSet_FindsAProcessInAnExecve(t *testing.T) {
	script := filepath.Join(t.TempDir(), "again")
	write(t, filepath.Dir(script), "again", "#!/bin/sh\nexec /bin/sh \"$0\"\n")

	c := exec.Command("/bin/sh", script)
	c.Env = []string{EnvRunID + "=again", EnvToken + "=7"}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = c.Process.Kill(), c.Wait() }()

	missed := 0
	for range 2000 {
		var h KillSet
		h.AddMark(Mark{RunID: "again", Token: 7})
		if !h.hasMark(c.Process.Pid) {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("its mark was not seen %d times of 2000", missed)
	}
}

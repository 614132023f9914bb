package importer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// A line whose commands are joined by && stays one task, and a note has the tasks that it can be.
func TestCrontab_OffersToSplitChains(t *testing.T) {
	const text = "SHELL=/bin/bash\nMAILTO=\n0 2 * * * /opt/etl --day today && /opt/report 2>&1 | tee -a /tmp/r && /opt/mail 'a && b' >/dev/null\n"
	r := importer.Crontab("f", text, importer.Form{User: "ann"}, importer.Options{Host: "web1", Timezone: "Europe/Berlin"})
	r.NoteChains()
	j := onlyJob(t, r, text)
	if p := j.Spec.Action.Process; len(j.Spec.After) > 0 || !strings.Contains(p.Shell+strings.Join(p.Command, " "), "&& /opt/mail") {
		t.Errorf("the task is split: %+v", j.Spec)
	}

	at := slices.IndexFunc(j.Notes, func(n string) bool { return strings.HasPrefix(n, "this line can be 3 tasks") })
	if at < 0 {
		t.Fatalf("%q", j.Notes)
	}

	// What the note contains can be applied as it is.
	_, documents, _ := strings.Cut(j.Notes[at], "\n---\n")
	values, err := manifest.Values("f", []byte(documents))
	must(t, err)
	if len(values) != 2 || !strings.Contains(j.Notes[at], `keep only the command "/opt/etl --day today" here`) {
		t.Fatalf("%s", j.Notes[at])
	}

	source := j.Spec.Name
	for i, command := range []string{"/opt/report 2>&1 | tee -a /tmp/r", "/opt/mail 'a && b' >/dev/null"} {
		objects, err := manifest.Read("f", []byte(strings.Split(documents, "\n---\n")[i]), "default")
		must(t, err)
		s := objects[0].Spec
		valid(t, s)

		p := s.Action.Process
		if p.User != "ann" || p.Command[2] != command || s.After[0].Task != source || s.Overlap != task.OverlapQueue || s.Target.Selector != j.Spec.Target.Selector {
			t.Errorf("%+v", s)
		}
		source = s.Name
	}
}

func TestCrontab_OffersNoSplitThatChangesTheCommands(t *testing.T) {
	for _, command := range []string{
		"/a", "/a; /b && /c", "/a && /b || /c", "/a && /b &", "cd /srv && /a", "/a && cd /b && /c", "test -x /a && /a", "[ -e /x ] && /a", "grep -q x /f && /a",
		"export A=1 && /a", "A=1 && /a", ". /env && /a", "(/a && /b)", "if /a && /b; then /c; fi", "/a && { /b; }", "/a # && /b", "/a '&& /b'", "sleep 5 && /a",
		"/a `x && y`", "/a && X=1", "/a && /b%input", "! /a && /b",
	} {
		r := importer.Crontab("f", "0 2 * * * "+command+"\n", importer.Form{User: "ann"}, importer.Options{})
		r.NoteChains()
		for _, j := range r.Jobs {
			if strings.Contains(strings.Join(j.Notes, "\n"), "this line can be") {
				t.Errorf("%s: %q", command, j.Notes)
			}
		}
	}

	for _, c := range []struct {
		schedule string
		options  importer.Options
	}{{"@reboot", importer.Options{}}, {"@daily", importer.Options{Shadow: true}}} {
		r := importer.Crontab("f", c.schedule+" /a && /b\n", importer.Form{User: "ann"}, c.options)
		r.NoteChains()
		if len(r.Jobs) != 1 || strings.Contains(strings.Join(r.Jobs[0].Notes, "\n"), "this line can be") {
			t.Errorf("%+v", r)
		}
	}
}

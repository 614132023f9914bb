package importer

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// NoteChains adds notes about tasks that run after others, when all files have been read: sources and dependents that are not
// among the jobs, and lines of crontabs whose commands could be several tasks.
func (r *Result) NoteChains() {
	byName := map[string]*task.Spec{}
	for i := range r.Jobs {
		s := &r.Jobs[i].Spec
		byName[s.Namespace+"/"+s.Name] = s
	}

	for i := range r.Jobs {
		j := &r.Jobs[i]

		for _, source := range j.Spec.After {
			if byName[j.Spec.Namespace+"/"+source.Task] == nil {
				j.Notes = append(j.Notes, fmt.Sprintf("runs after %s, which is not imported: create that task first", source.Task))
			}
		}

		var missing []string
		for _, name := range j.dependents {
			name = joinName(makeSlug(j.prefix), name)
			if s := byName[j.Spec.Namespace+"/"+name]; s == nil || s.After.Find(j.Spec.Name) == nil {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			j.Notes = append(j.Notes, fmt.Sprintf("these jobs run after it in Dkron, and do not any more: %s", strings.Join(missing, ", ")))
		}

		if note := splitNote(j.Spec); note != "" {
			j.Notes = append(j.Notes, note)
		}
	}
}

// splitNote offers to make a task of each command of a line of a crontab whose commands are joined by &&. It returns "" if that
// would change what they do.
func splitNote(s task.Spec) string {
	if s.Labels[LabelKind] != "crontab" || s.Shadow || s.Target.Count != 1 || s.Schedule.AtBoot() {
		return ""
	}

	p := s.Action.Process
	if p == nil || p.Stdin != nil {
		return ""
	}

	line, inShell := p.Shell, true
	if line == "" && len(p.Command) == 3 && p.Command[1] == "-c" {
		line, inShell = p.Command[2], false
	}

	parts := splitChain(line)
	if len(parts) < 2 {
		return ""
	}

	note := fmt.Sprintf("this line can be %d tasks, each with its own history, retries and alerts: keep only the command %s here, and add what follows; "+
		"if a command reads files of the one before, both need the same node", len(parts), quoteShort(parts[0]))

	last := s.Name
	for i, command := range parts[1:] {
		next := s
		next.Name = fmt.Sprintf("%s-%d", s.Name, i+2)
		next.Description, next.After = "", task.Sources{{Task: last}}
		last = next.Name

		// What concerns ticks does not apply. An end that comes while a run is active waits.
		usual := task.DefaultsOf(task.Spec{After: next.After})
		next.Schedule, next.Timezone, next.DST = usual.Schedule, usual.Timezone, usual.DST
		next.Missed, next.Jitter, next.Overlap = usual.Missed, 0, usual.Overlap

		process := *p
		if inShell {
			process.Shell = command
		} else {
			process.Command = []string{p.Command[0], p.Command[1], command}
		}
		next.Action.Process = &process

		spec, err := manifest.MinimalSpec(next, false)
		if err != nil {
			return ""
		}
		text, err := manifest.WriteYAML(spec)
		if err != nil {
			return ""
		}
		note += "\n---\n" + strings.TrimSuffix(string(text), "\n")
	}

	return note
}

// shellKeywords begin commands that are not complete in themselves.
var shellKeywords = strings.Fields("if then elif else fi for while until do done case esac in { } ! [[ function select time exec eval set shift return local declare alias pushd popd")

// splitChain returns the commands of a line that are joined by &&, if each of them would do the same on its own. It returns nil
// if there is another operator, or a command that only prepares the next one, such as cd, or that is a condition.
func splitChain(line string) (parts []string) {
	if strings.ContainsAny(line, "()`#\n") {
		return nil
	}

	begin := 0
	first := true // of a pipeline
	for _, c := range splitCommands(line) {
		name := path.Base(c.words[0])
		changesShell := assignmentPattern.MatchString(c.words[0]) && len(c.words) == 1
		if changesShell || first && (slices.Contains(auxiliaryCommands, name) || slices.Contains(conditionPrograms, name)) || slices.Contains(shellKeywords, name) {
			return nil
		}

		switch c.operator {
		case "&&", "":
			parts = append(parts, strings.TrimSpace(line[begin:c.end]))
			begin = min(c.end+len(c.operator), len(line))
			first = true
		case "|":
			first = false
		default:
			return nil
		}
	}

	return parts
}

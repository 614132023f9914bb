package manifest

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// foreignObject returns the error for a mapping that belongs to another system, or nil. Without it, each of its fields would be
// reported as unknown.
func (n *node) foreignObject() error {
	kind := n.valueOf("kind")
	switch {
	case n.valueOf("apiVersion") != nil && kind != nil:
		return task.Invalid(task.CodeBadValue, "kind", "%s of Kubernetes is not a task; to convert CronJobs, use: carillon import kubernetes", task.Quote(strings.Trim(kind.scalar, `"`)))
	case n.valueOf("executor") != nil && n.valueOf("executor_config") != nil:
		return task.Invalid(task.CodeBadValue, "executor", "a job of Dkron is not a task; to convert it, use: carillon import dkron")
	}

	return nil
}

// The first line of a unit of systemd, and the lines of a crontab: settings and jobs.
var (
	unitLine    = regexp.MustCompile(`^\[(Unit|Timer|Service|Install)\]$`)
	settingLine = regexp.MustCompile(`^[A-Z_]+ ?=`)
	jobLine     = regexp.MustCompile(`^(@(reboot|yearly|annually|monthly|weekly|daily|midnight|hourly)|[0-9*][-0-9*,/~]*(\s+[-0-9A-Za-z*,/~]+){4})\s+[^\s:]+(\s|$)`)
)

// foreignText returns the error for a file that cannot be read as tasks, because it is a crontab or a unit of systemd, or nil.
func foreignText(file string, b []byte) error {
	line := 0
	for raw := range bytes.Lines(b) {
		line++
		text := strings.TrimSpace(string(raw))

		what := ""
		switch {
		case text == "" || text[0] == '#' || settingLine.MatchString(text):
			continue
		case unitLine.MatchString(text):
			what = "a unit of systemd is not a task; to convert timers, use: carillon import systemd"
		case jobLine.MatchString(text):
			what = "a crontab is not a task; to convert it, use: carillon import crontab"
		default:
			return nil
		}

		return &Error{File: file, Line: line, Column: 1, Err: task.Invalid(task.CodeBadValue, "", "%s", what)}
	}

	return nil
}

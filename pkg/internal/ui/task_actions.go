package ui

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// triggerTask runs a task now, as it was when the form was shown.
func triggerTask(ctx context.Context, r *Request) (Done, error) {
	revision, err := revisionOf(r)
	if err != nil {
		return Done{}, err
	}
	env, err := parsePairs("env", r.Form.Get("env"))
	if err != nil {
		return Done{}, err
	}

	give := client.TriggerRequest{
		Args: parseLines(r.Form.Get("args")), Env: env, Target: strings.TrimSpace(r.Form.Get("target")), IdempotencyKey: r.Form.Get(formKeyField),
	}
	t, err := r.API.Tasks.TriggerWith(ctx, r.Value("ns"), r.Value("name"), give, revision)
	if err != nil {
		return Done{}, err
	}

	message := fmt.Sprintf("triggered %s · run %s", r.Value("name"), t.ID)
	if t.Replayed {
		message = fmt.Sprintf("this form has triggered %s already · run %s", r.Value("name"), t.ID)
	}
	if t.Frozen != nil {
		message += "; it starts when the freeze ends"
	}

	return Done{To: r.taskPath(tabRuns), Message: message}, nil
}

// pauseTask pauses a task.
func pauseTask(ctx context.Context, r *Request) (Done, error) {
	ns, name := r.Value("ns"), r.Value("name")
	t, err := r.API.Tasks.Get(ctx, ns, name)
	if err != nil {
		return Done{}, err
	}

	request, err := pauseRequest(r, t.Timezone)
	if err != nil {
		return Done{}, err
	}
	if t, err = r.API.Tasks.PauseWith(ctx, ns, name, request, 0); err != nil {
		return Done{}, err
	}

	message := "paused " + name
	if !t.PausedUntil.IsZero() {
		message += " until " + t.PausedUntil.In(r.Zone(t.Timezone)).Format("Mon 2 Jan 15:04 MST")
	}

	return Done{To: r.taskPath(""), Message: message}, nil
}

// pauseRequest reads the end and the reason of a pause from a form. A time without an offset is in the given zone.
func pauseRequest(r *Request, timezone string) (client.PauseRequest, error) {
	const field = "until"
	text := strings.TrimSpace(r.Form.Get(field))
	request := client.PauseRequest{Reason: strings.TrimSpace(r.Form.Get("reason"))}
	if text == "" {
		return request, nil
	}

	if d, err := task.ParseDuration(field, text); err == nil {
		if request.For = d; request.For < task.Duration(time.Second) || request.For > task.MaxTimeout {
			return request, task.Invalid(task.CodeOutOfRange, field, "%s must be between 1s and %s", task.Quote(text), task.MaxTimeout)
		}
		return request, nil
	}
	if request.Until.UnmarshalText([]byte(text)) == nil {
		return request, nil
	}

	var err error
	request.Until, err = manifest.Instant(field, text, timezone, r.Now)

	return request, err
}

// resumeTask ends the pause of a task.
func resumeTask(ctx context.Context, r *Request) (Done, error) {
	t, err := r.API.Tasks.Resume(ctx, r.Value("ns"), r.Value("name"), 0)
	if err != nil {
		return Done{}, err
	}

	message := "resumed " + t.Name
	if !t.Next.IsZero() {
		message += " · next " + t.Next.In(r.Zone(t.Timezone)).Format("Mon 2 Jan 15:04 MST")
	}
	if t.DroppedTriggers > 0 {
		message += " · the pause dropped " + wording.Plural(t.DroppedTriggers, "ended run") + " of its sources"
	}

	return Done{To: r.taskPath(""), Message: message}, nil
}

// deleteTask deletes a task, as it was when the form was shown.
func deleteTask(ctx context.Context, r *Request) (Done, error) {
	revision, err := revisionOf(r)
	if err != nil {
		return Done{}, err
	}
	if err := r.API.Tasks.DeleteWith(ctx, r.Value("ns"), r.Value("name"), client.DeleteOptions{Revision: revision, Force: r.Form.Has("force")}); err != nil {
		return Done{}, err
	}

	return Done{To: "/ui/tasks", Message: "deleted " + r.Value("name")}, nil
}

// rollbackTask rolls a task back to an earlier version.
func rollbackTask(ctx context.Context, r *Request) (Done, error) {
	revision, err := revisionOf(r)
	if err != nil {
		return Done{}, err
	}
	to, err := strconv.ParseInt(r.Form.Get("to"), 10, 64)
	if err != nil {
		return Done{}, task.Invalid(task.CodeBadValue, "to", "%s is not the number of a version", task.Quote(r.Form.Get("to")))
	}

	t, err := r.API.Tasks.Rollback(ctx, r.Value("ns"), r.Value("name"), client.RollbackRequest{To: to}, revision)
	if err != nil {
		return Done{}, err
	}

	return Done{To: r.taskPath(tabVersions), Message: fmt.Sprintf("rolled %s back to version %d", t.Name, t.To)}, nil
}

// formKeyField is the field of a form with its idempotency key.
const formKeyField = "key"

// FormKey returns the idempotency key of a form that starts runs: a form that is sent twice starts each run once. A form that
// is shown again, because the outcome of its action may be unknown, keeps its key.
func (v *View) FormKey() string {
	if key := v.Form.Get(formKeyField); key != "" && client.CheckIdempotencyKey(key) == nil {
		return key
	}
	return task.NewUID()
}

// revisionOf returns the revision of the task that a form was about.
func revisionOf(r *Request) (int64, error) {
	revision, err := strconv.ParseInt(r.Form.Get("revision"), 10, 64)
	if err != nil || revision <= 0 {
		return 0, task.Invalid(task.CodeBadValue, "revision", "%s is not a revision; open the page again", task.Quote(r.Form.Get("revision")))
	}

	return revision, nil
}

// taskPath returns the path of a tab of the task that the request is about.
func (r *Request) taskPath(tab string) string {
	path, err := link("/ui/tasks/{}/{}", nil, []any{r.Value("ns"), r.Value("name")})
	if err != nil {
		return "/ui/tasks"
	}
	if tab != "" {
		path += "?tab=" + tab
	}

	return path
}

// parseLines returns the lines of a text that are not empty.
func parseLines(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			list = append(list, line)
		}
	}

	return list
}

// parsePairs reads lines of the form NAME=VALUE.
func parsePairs(field, text string) (map[string]string, error) {
	pairs := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}

		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, task.Invalid(task.CodeBadValue, field, "%s: write one NAME=VALUE on each line", task.Quote(line))
		}
		if _, twice := pairs[name]; twice {
			return nil, task.Invalid(task.CodeDuplicate, field, "%s is set twice", task.Quote(name))
		}
		pairs[name] = value
	}

	if len(pairs) == 0 {
		return nil, nil
	}

	return pairs, nil
}

// Package complete implements shell completion: names from the server, and values of flags. It waits only
// briefly for the server, caches what it found for a few seconds, and ignores errors.
package complete

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// completionTimeout is how long completion waits for the server, unless IO.CompleteTimeout is set.
const completionTimeout = 300 * time.Millisecond

// MaxOffers is the maximum number of names that one completion reads.
const MaxOffers = 1000

// Func is cobra's type of completion functions.
type Func = func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// Offer is a word that completion offers, with a description.
type Offer struct {
	Word  string `json:"word"`
	About string `json:"about,omitempty"`
}

// Lookup requests words from the server.
type Lookup func(ctx context.Context, c *client.Client) ([]Offer, error)

// Live returns the words of look, which may be cached. It returns nothing after an error, because an error
// message would disturb the command line.
func Live(f *factory.Factory, cmd *cobra.Command, kind string, look Lookup) []Offer {
	if cmd.Context() == nil {
		return nil
	}

	limit := cmp.Or(f.CompleteTimeout, completionTimeout)
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()

	found, err := factory.ReadPatiently(ctx, func() ([]Offer, error) { // the file with the token may be a pipe, whose read blocks
		quiet := *f
		quiet.Quiet, quiet.Verbose = true, false

		c, err := quiet.ConnectFor(limit)
		if err != nil {
			return nil, err
		}

		return cachedOffers(&quiet, kind, func() ([]Offer, error) { return look(ctx, c) })
	})

	if err != nil {
		return nil
	}

	return found
}

// Matching returns the offers that begin with typed and are not among the words done.
func Matching(offers []Offer, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var words []cobra.Completion
	for _, o := range offers {
		switch {
		case !strings.HasPrefix(o.Word, typed) || slices.Contains(done, o.Word):
		case o.About == "":
			words = append(words, o.Word)
		default:
			words = append(words, cobra.CompletionWithDesc(o.Word, o.About))
		}
	}

	return words, cobra.ShellCompDirectiveNoFileComp
}

// someTasks calls do for the first tasks of the scope, or for those that match a pattern.
func someTasks(ctx context.Context, f *factory.Factory, c *client.Client, pattern string, do func(client.Task)) error {
	o := client.TaskListOptions{Namespace: f.Scope(), Limit: MaxOffers, Brief: true}
	if pattern != "" {
		var err error
		if o.Namespace, o.Query, err = selection.Query(f, []string{pattern}, ""); err != nil {
			return err
		}
	}

	for t, err := range c.Tasks.All(ctx, o) {
		if err != nil {
			return err
		}
		do(t)
	}

	return nil
}

// Tasks completes names of tasks. If there are more tasks than one list contains, it requests those that begin
// with typed.
func Tasks(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		offers := Live(f, cmd, "tasks", taskOffers(f, ""))
		bare := f.AllNamespaces && !strings.Contains(typed, "/") // typed begins a namespace and not a name
		if len(offers) >= MaxOffers && typed != "" && !bare && !selection.IsGlob(typed) {
			offers = Live(f, cmd, "tasks "+typed, taskOffers(f, typed+"*"))
		}

		return Matching(offers, done, typed)
	}
}

// taskOffers returns a lookup of the first tasks, or of those that match a pattern.
func taskOffers(f *factory.Factory, pattern string) Lookup {
	return func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		err = someTasks(ctx, f, c, pattern, func(t client.Task) {
			offers = append(offers, Offer{selection.TaskName(f, t), cmp.Or(output.OneLine(t.Description), output.OneLine(view.ScheduleText(t.Spec)))})
		})
		return offers, err
	}
}

// Task is like Tasks, for a command that takes only one task.
func Task(f *factory.Factory) Func { return At(Tasks(f), nil) }

// Query completes the words of a query: names of tasks, keys of terms, and the values of states, actions, labels and alerts.
func Query(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		key, _, isTerm := strings.Cut(typed, ":")
		var values []Offer
		switch plain := strings.TrimPrefix(key, "-"); {
		case !isTerm:
			words, directive := Tasks(f)(cmd, done, typed)
			if len(words) > 0 || typed == "" {
				return words, directive
			}

			for _, name := range readmodel.QueryKeys() {
				if strings.HasPrefix(name, plain) {
					words = append(words, typed[:len(typed)-len(plain)]+name+":")
				}
			}

			return words, directive | cobra.ShellCompDirectiveNoSpace
		case plain == "state":
			values = fixedOffers(readmodel.QueryStates())
		case plain == "action":
			values = fixedOffers([]string{"workflow"})
		case plain == "alert":
			values = fixedOffers(append(task.TaskAlertKindNames(), "any"))
		case plain == "label":
			values = taskLabels(f, cmd)
		}

		for i, v := range values {
			values[i].Word = key + ":" + v.Word
		}

		return Matching(values, done, typed)
	}
}

// fixedOffers returns words without a description.
func fixedOffers(words []string) []Offer {
	offers := make([]Offer, len(words))
	for i, w := range words {
		offers[i].Word = w
	}
	return offers
}

// runsOfTask is how many runs completion offers after TASK@.
const runsOfTask = 20

// Runs completes names of tasks, ids of runs if typed begins with one, and the newest runs of a task after TASK@.
func Runs(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if name, _, of := strings.Cut(typed, "@"); of {
			return Matching(Live(f, cmd, "runs of "+name, func(ctx context.Context, c *client.Client) ([]Offer, error) {
				r, err := selection.ParseRef(f, name)
				if err != nil {
					return nil, err
				}

				runs, err := c.Runs.ListByTask(ctx, r.Namespace, r.Name, client.RunListOptions{Limit: runsOfTask})
				offers := make([]Offer, len(runs))
				for i, run := range runs {
					offers[i] = Offer{name + "@" + run.ID, output.OneLine(string(run.State))}
				}

				return offers, err
			}), done, typed)
		}

		if !selection.RunIDStart.MatchString(typed) {
			return Tasks(f)(cmd, done, typed)
		}

		return Matching(Live(f, cmd, "runs", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			runs, err := c.Runs.List(ctx, client.RunListOptions{Namespace: f.Scope(), Limit: MaxOffers})
			offers := make([]Offer, len(runs))
			for i, r := range runs {
				offers[i] = Offer{r.ID, output.OneLine(r.Task + " " + string(r.State))}
			}

			return offers, err
		}), done, typed)
	}
}

// DeadRuns completes dead runs as TASK@ID.
func DeadRuns(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "dead", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			runs, err := c.Runs.List(ctx, client.RunListOptions{Namespace: f.Scope(), Dead: true, Limit: MaxOffers})
			offers := make([]Offer, len(runs))
			for i, r := range runs {
				name := selection.Show(f, selection.Ref{Namespace: r.Namespace, Name: r.Task})
				offers[i] = Offer{name + "@" + r.ID, output.OneLine(string(r.State) + " " + f.PastTime(r.EndedAt, output.ReaderZone))}
			}

			return offers, err
		}), done, typed)
	}
}

// Steps completes the steps of the run that the command line names, and their items that failed or are active.
func Steps(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(done) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}

		return Matching(Live(f, cmd, "steps of "+done[0], func(ctx context.Context, c *client.Client) ([]Offer, error) {
			r, err := selection.FindRun(ctx, f, c, done[0])
			if err != nil {
				return nil, err
			}

			steps, err := c.Runs.Steps(ctx, r.Namespace, r.Task, r.ID, client.StepsOptions{})
			var offers []Offer
			for _, s := range steps.Steps {
				offers = append(offers, Offer{s.Name, wording.StepResult(s, f.Now())})
				for _, p := range s.Parts {
					if p.Item != nil && p.State != task.Succeeded && p.State != task.Queued {
						offers = append(offers, Offer{p.Name, wording.RunResult(wording.StepPartRun(p), f.Now())})
					}
				}
			}

			return offers, err
		}), nil, typed)
	}
}

// Nodes completes names of nodes.
func Nodes(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "nodes", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			nodes, err := c.Nodes.List(ctx)
			offers := make([]Offer, len(nodes))
			for i, n := range nodes {
				offers[i] = Offer{n.Name, output.OneLine(n.State + " " + n.Address)}
			}

			return offers, err
		}), done, typed)
	}
}

// TaskLabels completes a selector with the labels of tasks.
func TaskLabels(f *factory.Factory) Func {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nextTerm(taskLabels(f, cmd), typed)
	}
}

// taskLabels returns the labels of tasks.
func taskLabels(f *factory.Factory, cmd *cobra.Command) []Offer {
	return Live(f, cmd, "task-labels", func(ctx context.Context, c *client.Client) ([]Offer, error) {
		l := labelsSeen{}
		err := someTasks(ctx, f, c, "", func(t client.Task) { l.countLabels(t.Labels) })
		return l.listOffers(), err
	})
}

// NodeLabels completes a selector with the labels and facts of nodes.
func NodeLabels(f *factory.Factory) Func {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nextTerm(Live(f, cmd, "node-labels", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			nodes, err := c.Nodes.List(ctx)
			l := labelsSeen{}

			for _, n := range nodes {
				l.countLabels(n.Labels)
			}

			return append(l.listOffers(), factOffers(nodes)...), err
		}), typed)
	}
}

// factOffers returns the beginnings of comparisons of facts, with the range of values on the nodes.
func factOffers(nodes []task.Node) []Offer {
	var offers []Offer
	for _, name := range task.FactNames() {
		var least, most string
		var low, high float64
		for _, n := range nodes {
			if v, ok := n.Facts.Fact(name); ok {
				if least == "" || v < low {
					least, low = view.FactText(n.Facts, name), v
				}

				if most == "" || v > high {
					most, high = view.FactText(n.Facts, name), v
				}
			}
		}

		if most != "" {
			sign := ">"
			if strings.HasPrefix(name, "load") {
				sign = "<"
			}
			offers = append(offers, Offer{name + sign, fmt.Sprintf("%s to %s", least, most)})
		}
	}

	return offers
}

// labelsSeen counts the objects with each label.
type labelsSeen map[string]int64

// countLabels counts the labels of one object.
func (l labelsSeen) countLabels(labels map[string]string) {
	for k, v := range labels {
		l[k+"="+v]++
	}
}

// listOffers returns the labels as offers.
func (l labelsSeen) listOffers() []Offer {
	var offers []Offer
	for _, label := range slices.Sorted(maps.Keys(l)) {
		offers = append(offers, Offer{label, fmt.Sprintf("%d of them", l[label])})
	}
	return offers
}

// nextTerm completes the term after the last comma of a selector.
func nextTerm(offers []Offer, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var next []Offer
	for _, o := range offers {
		if !strings.Contains(","+before, ","+o.Word+",") {
			next = append(next, Offer{before + o.Word, o.About})
		}
	}

	return Matching(next, nil, typed)
}

// Contexts completes the names of contexts.
func Contexts(f *factory.Factory) Func {
	return func(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		file, _, err := settings.ReadFile(f.Path())
		if err != nil || len(done) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}

		var words []cobra.Completion
		for _, name := range slices.Sorted(maps.Keys(file.Contexts)) {
			if strings.HasPrefix(name, typed) {
				words = append(words, cobra.CompletionWithDesc(name, output.OneLine(cmp.Or(file.Contexts[name].Server, client.DefaultServer))))
			}
		}

		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// ContextSet completes a context, then fields, and the files of fields that name one.
func ContextSet(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(done) == 0 {
			return Contexts(f)(cmd, done, typed)
		}

		key, _, begun := strings.Cut(typed, "=")
		switch {
		case begun && strings.HasSuffix(key, "_file"):
			return nil, cobra.ShellCompDirectiveDefault
		case begun && (key == "read_only" || key == "insecure"):
			return []cobra.Completion{key + "=true", key + "=false"}, cobra.ShellCompDirectiveNoFileComp
		}

		var words []cobra.Completion
		for _, name := range settings.FieldNames() {
			if strings.HasPrefix(name, typed) {
				words = append(words, name+"=")
			}
		}

		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// cacheTTL is how long cached words are offered, unless IO.CompleteFor is set.
const cacheTTL = 5 * time.Second

// cacheEntry is the contents of a cache file. At is a time of the wall clock.
type cacheEntry struct {
	At     time.Time `json:"at"`
	Offers []Offer   `json:"offers"`
}

// cachedOffers returns cached words, or the result of fetch. The cache belongs to one user, one server and one
// token, so it never offers words that another user may see.
func cachedOffers(f *factory.Factory, kind string, fetch func() ([]Offer, error)) ([]Offer, error) {
	file := cacheFile(f, kind)
	var c cacheEntry
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &c) == nil {
		if age := f.Now().Sub(c.At); age >= 0 && age < cmp.Or(f.CompleteFor, cacheTTL) {
			return c.Offers, nil
		}
	}

	offers, err := fetch()
	if err == nil && file != "" {
		writeCache(f, file, cacheEntry{f.Now(), offers})
	}

	return offers, err
}

// cacheFile returns the path of the cache for a kind of words, or "" if it cannot be cached.
func cacheFile(f *factory.Factory, kind string) string {
	dir := f.UserDirFile(settings.CacheDir, "complete")
	s, err := f.Settings()
	if dir == "" || err != nil {
		return ""
	}

	token, err := f.Token()
	if err != nil {
		return ""
	}

	sum := sha256.Sum256([]byte(strings.Join([]string{kind, s.Name, f.ServerSetting(s).Value, f.Scope(), token}, "\x00")))

	return filepath.Join(dir, hex.EncodeToString(sum[:12])+".json")
}

// writeCache writes a cache file and deletes outdated ones. It ignores errors, because the cache is optional.
func writeCache(f *factory.Factory, file string, c cacheEntry) {
	b, err := json.Marshal(c)
	if err != nil {
		return
	}

	dir := filepath.Dir(file)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && f.Now().Sub(info.ModTime()) > time.Minute {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}

	_ = settings.WritePrivateFile(file, b)
}

// GlobalFlags registers the completion of global flags.
func GlobalFlags(f *factory.Factory, root *cobra.Command) {
	RegisterFixed(root, "output", output.Formats...)
	RegisterFixed(root, "time", output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC)
	RegisterFixed(root, "color", "auto", "always", "never")
	Register(root, "namespace", Namespaces(f))
	Register(root, "context", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Contexts(f)(cmd, nil, typed)
	})
}

// AllFlags registers the completion of flags that have the same meaning in all commands.
func AllFlags(f *factory.Factory, cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		AllFlags(f, c)
	}

	known := map[string]Func{"selector": TaskLabels(f), "timezone": completeZones,
		"task": Tasks(f), "node": Nodes(f), "record": Fixed(task.RecordAll, task.RecordFailures),
		"tls-client-auth": Fixed("none", "optional", "require"), "role": Fixed("scheduler", "executor"), "log-format": Fixed("json", "console"),
		"log-level": Fixed("debug", "info", "warn", "error"), "initial-cluster-state": Fixed("new", "existing")}
	if cmd.HasParent() && cmd.Parent().Name() == "node" {
		known["selector"] = NodeLabels(f)
	}

	own := cmd.LocalNonPersistentFlags() // computed once, because each call computes it again

	for flag, words := range known {
		if own.Lookup(flag) != nil {
			Register(cmd, flag, words) // has no effect if the command has registered its own
		}
	}

	own.VisitAll(func(flag *pflag.Flag) {
		if !namesFile.MatchString(flag.Name) {
			Register(cmd, flag.Name, cobra.NoFileCompletions) // prevents the completion of file names
		}
	})

	takesFiles := strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "COMMAND")
	if refuses := cmd.Args != nil && cmd.Args(cmd, []string{"x"}) != nil; cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() && (refuses || !takesFiles) {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// namesFile matches the names of flags whose value is a file or a directory.
var namesFile = regexp.MustCompile(`(^|-)(file|filename|dir|config|ca|cert|key)$`)

// Fixed completes a fixed list of words.
func Fixed(words ...string) Func {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeZones completes names of time zones.
func completeZones(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return schedule.ZoneNames(typed), cobra.ShellCompDirectiveNoFileComp
}

// RegisterFixed registers a fixed list of words for a flag.
func RegisterFixed(cmd *cobra.Command, flag string, words ...string) {
	Register(cmd, flag, Fixed(words...))
}

// Register registers the completion of a flag, unless it has one already.
func Register(cmd *cobra.Command, flag string, f Func) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only if the flag does not exist
}

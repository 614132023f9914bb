package task

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskFlags are the fields of a task as flags: those that most tasks set have flags of their own, and --set sets any field.
// The given flags become a JSON merge patch. create applies it to the defaults, update sends it, so that a flag means the
// same for both.
type taskFlags struct {
	texts    map[string]*texts // of the flags in fieldFlags, by their names
	set      []string
	setFiles []string
	retries  int
	noop     bool
	http     string // the method, the URL, or both

	method, url string // from http and from the words of the command
}

// fieldFlag is a flag for one field. Its help is the description of the field.
type fieldFlag struct {
	name, path  string
	placeholder string // of its value, in the help
	note        string // added to the help
}

// fieldFlags are the flags for fields, in the order of the help. A flag for a map takes pairs.
var fieldFlags = []fieldFlag{
	{name: "schedule", path: "schedule", placeholder: "EXPR", note: "may be repeated"},
	{name: "after", path: "after", placeholder: "TASK[:WHEN]", note: "WHEN is succeeded, failed or ended (default: succeeded); may be repeated, with --set join=any"},
	{name: "timezone", path: "timezone", placeholder: "ZONE"},
	{name: "description", path: "description", placeholder: "TEXT"},
	{name: "label", path: "labels", placeholder: "KEY=VALUE", note: "KEY- removes one; may be repeated"},
	{name: "timeout", path: "timeout", placeholder: "DURATION"},
	{name: "overlap", path: "overlap", placeholder: "POLICY"},
	{name: "selector", path: "target.selector", placeholder: "SELECTOR"},
	{name: "shell", path: "action.process.shell", placeholder: "LINE"},
	{name: "env", path: "action.process.env", placeholder: "NAME=VALUE", note: "NAME- removes one; may be repeated"},
	{name: "dir", path: "action.process.dir", placeholder: "DIRECTORY"},
	{name: "user", path: "action.process.user", placeholder: "USER"},
	{name: "limit", path: "action.process.limits", placeholder: "NAME=VALUE", note: "such as memory=1Gi, cpu=1.5, open_files=64; NAME- removes one; may be repeated"},
	{name: "header", path: "action.http.headers", placeholder: "'NAME: VALUE'", note: "'NAME:' removes one; may be repeated"},
	{name: "json", path: "action.http.json", placeholder: "JSON", note: "@FILE reads it from a file, @- from standard input"},
}

// texts is the value of a flag: what was given, as often as it was given.
type texts struct {
	placeholder string
	given       []string
}

func (t *texts) String() string { return "" }
func (t *texts) Type() string   { return t.placeholder }

func (t *texts) Set(s string) error {
	t.given = append(t.given, s)
	return nil
}

// bindFlags declares the flags.
func (f *taskFlags) bindFlags(in *factory.Factory, cmd *cobra.Command) {
	flags := cmd.Flags()
	f.texts = map[string]*texts{}

	for _, t := range fieldFlags {
		f.texts[t.name] = &texts{placeholder: t.placeholder}
		flags.Var(f.texts[t.name], t.name, t.help())
	}

	flags.IntVar(&f.retries, "retries", 0, "make at most `N` attempts after the first; the same as --set retry.attempts=N+1")
	flags.StringVar(&f.http, "http", "", "send a request instead of starting a process: --http `METHOD` URL, or --http URL")
	flags.BoolVar(&f.noop, "noop", false, "start no process and always succeed; for tests")
	flags.StringArrayVar(&f.set, "set", nil, "set any field, as `PATH=VALUE`, such as retry.jitter=0.3; PATH= resets it; may be repeated. "+
		"carillon task fields lists the fields")
	flags.StringArrayVar(&f.setFiles, "set-file", nil, "set any field to the contents of a file, as `PATH=FILE`; - is standard input; may be repeated")
	flags.SortFlags = false
	cmd.SetFlagErrorFunc(fieldFlagError)

	overlap, _ := task.FindField(task.SpecFields(), "overlap")
	limits, _ := task.FindField(task.SpecFields(), "action.process.limits")
	var limitNames []string
	for _, limit := range limits.Inner {
		limitNames = append(limitNames, limit.Name()+"=")
	}

	complete.RegisterFixed(cmd, "overlap", overlap.Enum...)
	complete.RegisterFixed(cmd, "limit", limitNames...)
	complete.RegisterFixed(cmd, "http", task.HTTPMethods()...)
	complete.Register(cmd, "after", completeSources(in))
	complete.Register(cmd, "set", completeSet)
	complete.Register(cmd, "set-file", completeSetFile)
}

// help returns the help of the flag: the first sentence about its field, the allowed values, and the default.
func (ff fieldFlag) help() string {
	f, _ := task.FindField(task.SpecFields(), ff.path)
	about := []rune(wording.FirstSentence(f.Doc))
	about[0] = unicode.ToLower(about[0])
	words := string(about)

	if len(f.Enum) > 0 {
		words += ": " + strings.Join(f.Enum, ", ")
	}
	if ff.note != "" {
		words += "; " + ff.note
	}
	if f.Default != "" && f.Default != "none" {
		words += " (default: " + f.Default + ")"
	}

	return words
}

// fieldFlagError is factory.FlagError, which for an unknown flag that has the name of a field suggests --set.
func fieldFlagError(cmd *cobra.Command, err error) error {
	word, isUnknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !isUnknown {
		return factory.FlagError(cmd, err)
	}

	if word == "node" || word == "host" {
		return failure.Usage("%s", err).WithHint("did you mean: --selector '%s = NAME'", word)
	}

	plain := strings.NewReplacer("-", "", "_", "", ".", "")
	for _, f := range settableFields("") {
		if strings.HasSuffix("."+plain.Replace(f.Path), plain.Replace(word)) && len(word) > 2 {
			return failure.Usage("%s", err).WithHint("did you mean: --set %s=…", f.Path)
		}
	}

	return factory.FlagError(cmd, err)
}

// buildPatch returns the patch that the flags and the command after "--" describe.
func (f *taskFlags) buildPatch(ctx context.Context, in *factory.Factory, flags *pflag.FlagSet, command []string) (*manifest.Assignments, error) {
	if err := refuseTwoActions(flags, command); err != nil {
		return nil, err
	}

	a := manifest.NewAssignments()
	if err := f.setAction(a, command); err != nil {
		return nil, err
	}

	for _, t := range fieldFlags {
		if err := f.setField(ctx, in, a, t); err != nil {
			return nil, err
		}
	}

	if flags.Changed("retries") {
		if err := a.Set("retry.attempts", fmt.Sprint(f.retries+1)); err != nil {
			return nil, failure.Usage("--retries %d: is not between 0 and %d", f.retries, task.MaxAttempts-1)
		}
	}

	for _, given := range f.set {
		path, text, err := cutPath("set", given)
		if err == nil {
			err = a.Set(path, text)
		}
		if err != nil {
			return nil, err
		}
	}

	for _, given := range f.setFiles {
		path, file, err := cutPath("set-file", given)
		if err != nil {
			return nil, err
		}

		b, err := readFile(ctx, in, file, task.MaxAction)
		if err == nil {
			err = a.Set(path, string(b))
		}
		if err != nil {
			return nil, err
		}
	}

	return a, nil
}

// refuseTwoActions rejects two flags that each define what the task does.
func refuseTwoActions(flags *pflag.FlagSet, command []string) error {
	var given []string
	if len(command) > 0 {
		given = append(given, "a command after --")
	}
	for _, name := range []string{"shell", "http", "noop"} {
		if flags.Changed(name) {
			given = append(given, "--"+name)
		}
	}

	if len(given) > 1 {
		return failure.Usage("%s and %s cannot be used together", given[0], given[1])
	}

	return nil
}

// setAction sets the command, the request, or that the task does nothing.
func (f *taskFlags) setAction(a *manifest.Assignments, command []string) error {
	if len(command) > 0 {
		return a.SetValue("action.process.command", command)
	}
	if f.noop {
		return a.SetValue("action.noop", map[string]any{})
	}

	for path, text := range map[string]string{"action.http.url": f.url, "action.http.method": f.method} {
		if text == "" {
			continue
		}
		if err := a.SetValue(path, text); err != nil {
			return err
		}
	}

	return nil
}

// setField sets the field of a flag.
func (f *taskFlags) setField(ctx context.Context, in *factory.Factory, a *manifest.Assignments, t fieldFlag) error {
	given := f.texts[t.name].given
	switch {
	case len(given) == 0:
		return nil
	case t.name == "schedule":
		return a.SetValue(t.path, task.Schedules(given))
	case t.name == "after":
		return setSources(a, t, given)
	case t.name == "header":
		return setHeaders(a, t, given)
	case strings.Contains(t.placeholder, "="):
		return setPairs(a, t, given)
	case t.name == "json":
		return setJSON(ctx, in, a, t, given[len(given)-1])
	}

	return a.SetText(t.path, given[len(given)-1])
}

// setSources sets the tasks after which a task runs.
func setSources(a *manifest.Assignments, t fieldFlag, given []string) error {
	sources := make(task.Sources, len(given))
	for i, text := range given {
		sources[i] = task.ParseSource(text)
		if sources[i].Task == "" {
			return failure.Usage("--after %s: write TASK, or TASK:WHEN", task.Quote(text))
		}
	}

	return a.SetValue(t.path, sources)
}

// completeSources completes the name of a source, and then which of its ends count.
func completeSources(f *factory.Factory) complete.Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		name, _, hasWhen := strings.Cut(typed, ":")
		if !hasWhen {
			return complete.Tasks(f)(cmd, done, typed)
		}

		field, _ := task.FindField(task.SpecFields(), "after[].when")
		var words []string
		for _, when := range field.Enum {
			words = append(words, name+":"+when)
		}

		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// setPairs sets the keys of a map, or the fields of an object, from pairs KEY=VALUE and KEY-.
func setPairs(a *manifest.Assignments, t fieldFlag, given []string) error {
	pairs, err := parsePairs(t.name, given)
	if err != nil {
		return err
	}

	for _, p := range pairs {
		set := a.SetText
		if p.isRemoved || t.name == "limit" {
			set = a.Set // an empty value removes the key
		}
		if err := set(t.path+"."+p.key, p.value); err != nil {
			return err
		}
	}

	return nil
}

// pair is KEY=VALUE, or KEY-, which removes the key.
type pair struct {
	key, value string
	isRemoved  bool
}

// parsePairs reads the pairs of a flag.
func parsePairs(flag string, given []string) ([]pair, error) {
	var pairs []pair
	for _, text := range given {
		k, v, ok := strings.Cut(text, "=")
		p := pair{key: k, value: v, isRemoved: !ok && strings.HasSuffix(k, "-") && len(k) > 1}
		if p.isRemoved {
			p.key = strings.TrimSuffix(k, "-")
		}

		if p.key == "" || (!ok && !p.isRemoved) {
			return nil, failure.Usage("--%s %s: use KEY=VALUE, or KEY- to remove it", flag, task.Quote(text))
		}
		if slices.ContainsFunc(pairs, func(before pair) bool { return before.key == p.key }) {
			return nil, failure.Usage("--%s %s: %s is given twice", flag, task.Quote(text), task.Quote(p.key))
		}

		pairs = append(pairs, p)
	}

	return pairs, nil
}

// setHeaders sets headers from lines NAME: VALUE and NAME:.
func setHeaders(a *manifest.Assignments, t fieldFlag, lines []string) error {
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" {
			return failure.Usage("--header %s: use 'NAME: VALUE', or 'NAME:' to remove it", task.Quote(line))
		}

		set := a.SetText
		if value == "" {
			set = a.Set // removes the header
		}
		if err := set(t.path+"."+name, value); err != nil {
			return failure.Usage("--header %s: %s", task.Quote(line), err)
		}
	}

	return nil
}

// setJSON sets the body of a request.
func setJSON(ctx context.Context, in *factory.Factory, a *manifest.Assignments, t fieldFlag, text string) error {
	if file, isFile := strings.CutPrefix(text, "@"); isFile {
		b, err := readFile(ctx, in, file, task.MaxHTTPAction)
		if err != nil {
			return err
		}
		text = string(b)
	}

	var v any
	if err := task.DecodeStrict([]byte(text), &v); err != nil {
		return failure.Usage("--json: %s", err).WithHint(`quote it for the shell: --json '{"day": "${run.scheduled_time}"}'; or name a file: --json @order.json`)
	}

	return a.SetValue(t.path, json.RawMessage(text))
}

// cutPath splits the value of --set or --set-file at the first equals sign.
func cutPath(flag, pair string) (path, value string, err error) {
	path, value, ok := strings.Cut(pair, "=")
	if !ok || path == "" {
		return "", "", failure.Usage("--%s %s: write PATH=VALUE, such as retry.jitter=0.3", flag, task.Quote(pair)).WithHint("for the fields: carillon task fields")
	}
	if path == "name" || path == "namespace" {
		return "", "", failure.Usage("--%s %s: the %s of a task cannot be set with a flag", flag, task.Quote(pair), path)
	}

	return path, value, nil
}

// readFile reads a file, or standard input for "-".
func readFile(ctx context.Context, f *factory.Factory, path string, most int64) ([]byte, error) {
	in := f.In
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: "file", Message: path + ": " + failure.FileReason(err)}}
		}

		defer file.Close()

		in = file
	}

	b, err := factory.ReadPatiently(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, most+1)) })
	if err == nil && int64(len(b)) > most {
		return nil, failure.Usage("%s is larger than %d bytes, the maximum of an action", path, most).
			WithHint("a larger body can come from a secret: --set action.http.body=secret:NAME/KEY")
	}

	return b, err
}

// isURL reports whether a word is the URL of a request. The name of a task cannot be one, because it contains no colon.
func isURL(word string) bool {
	return strings.Contains(word, "://") || strings.HasPrefix(word, task.SecretRefPrefix)
}

// readRequest splits --http METHOD URL, and takes the URL out of the words of the command.
func (f *taskFlags) readRequest(cmd *cobra.Command, words []string) ([]string, error) {
	if !cmd.Flags().Changed("http") {
		return words, nil
	}
	if cmd.ArgsLenAtDash() >= 0 {
		return nil, failure.Usage("a command after -- and --http cannot be used together")
	}

	switch parts := strings.Fields(f.http); {
	case len(parts) == 1 && isURL(parts[0]):
		f.url = parts[0]
	case len(parts) == 2 && isURL(parts[1]):
		f.method, f.url = parts[0], parts[1]
	case len(parts) == 1:
		f.method = parts[0]
	default:
		return nil, failure.Usage("--http %s: use --http METHOD URL, or --http URL", task.Quote(f.http))
	}

	f.method = strings.ToUpper(f.method)
	if methods := task.HTTPMethods(); f.method != "" && !slices.Contains(methods, f.method) {
		e := failure.Usage("--http %s: is neither a URL nor one of the methods %s", task.Quote(f.http), strings.Join(methods, ", "))
		if near := task.Nearest(f.method, methods); near != "" {
			return nil, e.WithHint("did you mean: --http %s", near)
		}
		return nil, e.WithHint("a URL begins with https:// or http://")
	}

	var rest []string
	for _, w := range words {
		switch {
		case !isURL(w):
			rest = append(rest, w)
		case f.url != "":
			return nil, failure.Usage("two URLs: %s and %s", task.Quote(f.url), task.Quote(w))
		default:
			f.url = w
		}
	}

	return rest, nil
}

// specOf applies a patch to the defaults. A null means the default, so it is omitted.
func specOf(p map[string]any, namespace, name string) (task.Spec, error) {
	full := withoutNulls(p)
	full["name"], full["namespace"] = name, namespace

	b, err := json.Marshal(full)
	if err != nil {
		return task.Spec{}, fmt.Errorf("write the task as JSON: %w", err)
	}

	return task.DecodeSpec(b)
}

// withoutNulls returns a patch without its nulls.
func withoutNulls(p map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range p {
		if inner, ok := v.(map[string]any); ok {
			v = withoutNulls(inner)
		}

		if v != nil {
			out[k] = v
		}
	}

	return out
}
